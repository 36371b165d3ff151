// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Kit.eventually;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/** What the listeners of a case were given, and on which threads. */
final class Seen {
    private record One(String text, String thread) {
    }

    private final List<One> all = new CopyOnWriteArrayList<>();
    private final AtomicInteger calls = new AtomicInteger();

    void add(String... texts) {
        calls.incrementAndGet();
        for (String text : texts) {
            all.add(new One(text, Thread.currentThread().getName()));
        }
    }

    int calls() {
        return calls.get();
    }

    List<String> texts() {
        return all.stream().map(One::text).toList();
    }

    Set<String> threads() {
        return all.stream().map(One::thread).collect(Collectors.toSet());
    }

    Map<String, Set<String>> threadsOfTexts() {
        return all.stream().collect(
                Collectors.groupingBy(One::text, Collectors.mapping(One::thread, Collectors.toSet())));
    }

    void are(List<String> wanted, int seconds) throws Exception {
        eventually(wanted, seconds, this::texts);
    }

    void areInAnyOrder(Collection<String> wanted, int seconds) throws Exception {
        eventually(new TreeSet<>(wanted), seconds, () -> new TreeSet<>(texts()));
    }
}
