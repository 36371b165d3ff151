// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The operator through which all numbers pass, and which fails at some of them. Flink copies operators, so what the
 * copies share is static: the job runs in this process.
 */
final class Troubles {
    /** Numbers pass so slowly that checkpoints come between two failures. */
    private static final int PAUSE_EVERY = 50;
    private static final int PAUSE_MS = 20;

    private static final AtomicInteger DONE = new AtomicInteger();
    private static int planned;
    private static int spacing;

    private Troubles() {
    }

    /** The operator is to fail so many times, at equal distances. */
    static void plan(int count, int failures) {
        DONE.set(0);
        planned = failures;
        spacing = count / (planned + 1);
    }

    /** Fail if a failure that was planned did not happen. */
    static void finish() {
        Kit.want(DONE.get() == planned, "the operator failed", DONE.get(), "of", planned, "times");
    }

    static long pass(long number) throws Exception {
        if (planned > 0 && number % PAUSE_EVERY == 0) {
            TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
        }
        int done = DONE.get();
        if (done < planned && number >= (long) (done + 1) * spacing && DONE.compareAndSet(done, done + 1)) {
            throw new IllegalStateException("the operator fails at " + number + ", as it was told");
        }
        return number;
    }
}
