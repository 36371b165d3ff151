// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The official Java client, case by case, against the brokers at PULSAR_URLS; see ../run.py for the contract. */
public final class Main {
    /** A case takes a second or a few; one that takes this long hangs. */
    private static final int CASE_TIMEOUT_S = 40;

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        Path results = Path.of(System.getenv("COMPAT_RESULTS"));
        int failed = 0;
        for (Map.Entry<String, Case.Body> entry : Cases.all().entrySet()) {
            String feature = entry.getKey().split(": ", 2)[0];
            String name = entry.getKey().split(": ", 2)[1];
            if (arguments.length > 0 && !feature.equals(arguments[0])) {
                continue;
            }
            String why = run(entry.getValue());
            String outcome = why.isEmpty() ? "passed" : "failed";
            failed += why.isEmpty() ? 0 : 1;
            System.out.printf("%-7s %-24s %s %s%n", outcome, feature, name, why);
            String line = "{\"client\": \"java\", \"feature\": %s, \"case\": %s, \"outcome\": %s, \"why\": %s}%n"
                    .formatted(quoted(feature), quoted(name), quoted(outcome), quoted(why));
            Files.writeString(results, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }
        // The client's threads are not all daemons.
        System.exit(failed > 0 ? 1 : 0);
    }

    private static String run(Case.Body body) {
        var executor = Executors.newSingleThreadExecutor();
        var future = executor.submit(() -> {
            try (Case at = new Case()) {
                body.run(at);
            }
            return null;
        });
        try {
            future.get(CASE_TIMEOUT_S, TimeUnit.SECONDS);
            return "";
        } catch (TimeoutException hangs) {
            future.cancel(true);
            return "did not end within " + CASE_TIMEOUT_S + " s";
        } catch (ExecutionException thrown) {
            return String.valueOf(thrown.getCause());
        } catch (InterruptedException interrupted) {
            return "interrupted";
        } finally {
            executor.shutdownNow();
        }
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
