/* SPDX-License-Identifier: Apache-2.0
 *
 * A preloaded library that lets the disk of a real process fail, on command.
 *
 * The commands are in a file that every process maps (tests/jepsen/faulty_disk.py writes them). They hold for files below
 * the directory named there. While nothing is commanded, a call costs one comparison more.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct commands {
    int32_t active;       /* any of the following, but the clock */
    int32_t fail_syncs;   /* so many syncs fail with EIO */
    int32_t fail_writes;  /* so many writes fail with EIO */
    int32_t full;         /* what makes a file larger fails with ENOSPC */
    int32_t short_writes; /* a write takes at most half */
    int32_t slow_sync_us; /* a sync takes so much longer */
    int32_t hang;         /* a sync does not return until this is over */
    int32_t clock_s;      /* the wall clock is so much ahead */
    int32_t injected;     /* faults so far */
    char below[256];
};

static volatile struct commands *commands;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("FAULTY_DISK_COMMANDS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(struct commands), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) commands = mapped;
    close(fd);
}

static int concerns(int fd) {
    char link[64], path[1024];
    if (!commands || !commands->active) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strncmp(path, (const char *)commands->below, strlen((const char *)commands->below)) == 0;
}

/* Take one of so many faults. */
static int take(volatile int32_t *left) {
    int32_t now = *left;
    while (now > 0)
        if (__atomic_compare_exchange_n(left, &now, now - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            __atomic_add_fetch(&commands->injected, 1, __ATOMIC_SEQ_CST);
            return 1;
        }
    return 0;
}

static int fails(int code) {
    errno = code;
    return -1;
}

/* Returns how many of `size` bytes a write takes; -1 with errno. */
static ssize_t admitted(int fd, size_t size, off_t offset) {
    if (take(&commands->fail_writes)) return fails(EIO);
    if (commands->full) {
        struct stat now;
        if (fstat(fd, &now) == 0 && offset + (off_t)size > now.st_size) {
            __atomic_add_fetch(&commands->injected, 1, __ATOMIC_SEQ_CST);
            return fails(ENOSPC);
        }
    }
    return commands->short_writes && size > 1 ? (ssize_t)(size / 2) : (ssize_t)size;
}

#define REAL(name, type) static type real; if (!real) real = (type)dlsym(RTLD_NEXT, name)

typedef int (*sync_call)(int);
typedef ssize_t (*write_call)(int, const void *, size_t, off_t);
typedef ssize_t (*writev_call)(int, const struct iovec *, int, off_t, int);
typedef int (*allocate_call)(int, off_t, off_t);

static int synced(int fd, sync_call real) {
    if (concerns(fd)) {
        if (commands->slow_sync_us) usleep((useconds_t)commands->slow_sync_us);
        if (commands->hang) __atomic_add_fetch(&commands->injected, 1, __ATOMIC_SEQ_CST);
        while (commands->hang) usleep(1000);
        if (take(&commands->fail_syncs)) return fails(EIO);
    }
    return real(fd);
}

int fsync(int fd) { REAL("fsync", sync_call); return synced(fd, real); }
int fdatasync(int fd) { REAL("fdatasync", sync_call); return synced(fd, real); }

static ssize_t written(int fd, const void *data, size_t size, off_t offset, write_call real) {
    if (concerns(fd)) {
        ssize_t takes = admitted(fd, size, offset);
        if (takes < 0) return takes;
        size = (size_t)takes;
    }
    return real(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL("pwrite", write_call);
    return written(fd, data, size, offset, real);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL("pwrite64", write_call);
    return written(fd, data, size, offset, real);
}

static ssize_t gathered(int fd, const struct iovec *parts, int count, off_t offset, int flags, writev_call real) {
    if (!concerns(fd)) return real(fd, parts, count, offset, flags);
    size_t size = 0;
    for (int part = 0; part < count; part++) size += parts[part].iov_len;
    ssize_t takes = admitted(fd, size, offset);
    if (takes < 0) return takes;
    if ((size_t)takes == size) return real(fd, parts, count, offset, flags);
    struct iovec first = parts[0]; /* A short write: the first buffer, or a part of it. */
    if (first.iov_len > (size_t)takes) first.iov_len = (size_t)takes;
    return real(fd, &first, 1, offset, flags);
}

/* Python's os.pwritev calls these. */
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    REAL("pwritev2", writev_call);
    return gathered(fd, parts, count, offset, flags, real);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    REAL("pwritev64v2", writev_call);
    return gathered(fd, parts, count, offset, flags, real);
}

static int allocated(int fd, off_t offset, off_t size, allocate_call real) {
    if (concerns(fd) && commands->full) {
        __atomic_add_fetch(&commands->injected, 1, __ATOMIC_SEQ_CST);
        return ENOSPC; /* posix_fallocate returns its error. */
    }
    return real(fd, offset, size);
}
int posix_fallocate(int fd, off_t offset, off_t size) {
    REAL("posix_fallocate", allocate_call);
    return allocated(fd, offset, size, real);
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    REAL("posix_fallocate64", allocate_call);
    return allocated(fd, offset, size, real);
}

typedef int (*clock_call)(clockid_t, struct timespec *);
int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL("clock_gettime", clock_call);
    int result = real(clock, now);
    if (commands && clock == CLOCK_REALTIME) now->tv_sec += commands->clock_s;
    return result;
}
