// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The operator through which all numbers pass. At some of them it fails; at others it has the broker killed, and lets
 * numbers pass while that happens. Flink copies operators, so what the copies share is static: the job runs in this
 * process.
 */
final class Troubles {
    /** Numbers pass so slowly that checkpoints come between two troubles. */
    private static final int PAUSE_EVERY = 50;
    private static final int PAUSE_MS = 20;

    private static final AtomicInteger DONE = new AtomicInteger();
    private static volatile CompletableFuture<Void> kill = CompletableFuture.completedFuture(null);
    private static int planned;
    private static int kills;
    private static int spacing;

    private Troubles() {
    }

    /** So many kills of the broker, each followed by a failure of the operator, and then more failures. */
    static void plan(int count, int killed, int more) {
        DONE.set(0);
        kills = killed;
        planned = 2 * killed + more;
        spacing = count / (planned + 1);
    }

    /** Wait until the broker serves again after the last kill; fails if a trouble that was planned did not happen. */
    static void finish() {
        kill.join();
        Kit.want(DONE.get() == planned, DONE.get(), "of", planned, "troubles happened");
    }

    static long pass(long number) throws Exception {
        if (planned > 0 && number % PAUSE_EVERY == 0) {
            TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
        }
        int done = DONE.get();
        if (done < planned && number >= (long) (done + 1) * spacing && DONE.compareAndSet(done, done + 1)) {
            kill.join();
            if (done < 2 * kills && done % 2 == 0) {
                kill = CompletableFuture.runAsync(Troubles::killBroker);
            } else {
                throw new IllegalStateException("the operator fails at " + number + ", as it was told");
            }
        }
        return number;
    }

    private static void killBroker() {
        try {
            Kit.restartBroker();
        } catch (Exception error) {
            throw new CompletionException(error);
        }
    }
}
