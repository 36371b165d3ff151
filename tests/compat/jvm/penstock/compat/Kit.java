// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The cases of one client, run one after another, each with a time limit; see ../run.py for the contract. */
final class Kit {
    private static final int WHY_CHARS = 500;

    private final String client;
    private final int caseTimeoutS;
    private final String only;
    private final PrintStream console = System.out;
    private int failed;

    /** One case. */
    interface Body {
        void run() throws Exception;
    }

    /** A kit that runs all cases, or those of the feature that the command line names. */
    Kit(String client, int caseTimeoutS, String[] arguments) {
        this.client = client;
        this.caseTimeoutS = caseTimeoutS;
        this.only = arguments.length > 0 ? arguments[0] : null;
    }

    void run(String feature, String name, Body body) throws Exception {
        if (only != null && !only.equals(feature)) {
            return;
        }
        String why = outcome(body);
        String outcome = why.isEmpty() ? "passed" : "failed";
        failed += why.isEmpty() ? 0 : 1;
        console.printf("%-7s %-24s %s %s%n", outcome, feature, name, why);
        String line = "{\"client\": %s, \"feature\": %s, \"case\": %s, \"outcome\": %s, \"why\": %s}%n".formatted(
                quoted(client), quoted(feature), quoted(name), quoted(outcome), quoted(why));
        Files.writeString(Path.of(System.getenv("COMPAT_RESULTS")), line, StandardOpenOption.CREATE,
                StandardOpenOption.APPEND);
    }

    /** End this process, with status 1 if a case failed; not all threads of clients are daemons. */
    void exit() {
        System.exit(failed > 0 ? 1 : 0);
    }

    /** The address that the case of this number uses. */
    static String turnOf(String variable, int turn) {
        String[] addresses = System.getenv(variable).split(",");
        return addresses[turn % addresses.length];
    }

    /** Kill the broker and wait until it serves again, at the same ports. */
    static void restartBroker() throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("COMPAT_RESTART")))
                .POST(HttpRequest.BodyPublishers.noBody()).build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        want(answer.statusCode() == 200, "the broker did not start again:", answer.body());
    }

    static void want(boolean condition, Object... told) {
        if (!condition) {
            StringBuilder text = new StringBuilder();
            for (Object part : told) {
                text.append(part).append(' ');
            }
            throw new AssertionError(text.toString().strip());
        }
    }

    /** The action must throw; returns what it threw. */
    static <T extends Exception> T refused(Class<T> wanted, Callable<?> action) {
        try {
            action.call();
        } catch (Exception thrown) {
            want(wanted.isInstance(thrown), "want", wanted.getSimpleName(), "got", thrown);
            return wanted.cast(thrown);
        }
        throw new AssertionError("not refused, want " + wanted.getSimpleName());
    }

    /** Wait for what other threads or processes do, until the value is as wanted. */
    static void eventually(Object wanted, int seconds, Callable<?> value) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        Object got = value.call();
        while (!Objects.equals(wanted, got)) {
            want(System.nanoTime() < deadline, "want", wanted, "got", got);
            TimeUnit.MILLISECONDS.sleep(20);
            got = value.call();
        }
    }

    private String outcome(Body body) {
        var executor = Executors.newSingleThreadExecutor();
        var future = executor.submit(() -> {
            body.run();
            return null;
        });
        try {
            future.get(caseTimeoutS, TimeUnit.SECONDS);
            return "";
        } catch (TimeoutException hangs) {
            future.cancel(true);
            return "did not end within " + caseTimeoutS + " s";
        } catch (ExecutionException thrown) {
            String why = told(thrown.getCause()).replaceAll("\\s+", " ");
            return why.substring(0, Math.min(why.length(), WHY_CHARS));
        } catch (InterruptedException interrupted) {
            return "interrupted";
        } finally {
            executor.shutdownNow();
        }
    }

    /** What was thrown, and what is at the bottom of it. */
    private static String told(Throwable thrown) {
        Throwable root = thrown;
        while (root.getCause() != null) {
            root = root.getCause();
        }
        return root == thrown ? thrown.toString() : thrown + ", because of " + root;
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append("\\u%04x".formatted((int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
