// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.util.Map;

/** The official Java client, case by case, against the brokers at PULSAR_URLS; see ../run.py for the contract. */
public final class Main {
    /** A case takes a second or a few; one that takes this long hangs. */
    private static final int CASE_TIMEOUT_S = 40;

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        Kit kit = new Kit("java", CASE_TIMEOUT_S, arguments);
        for (Map.Entry<String, Case.Body> entry : Cases.all().entrySet()) {
            String[] parts = entry.getKey().split(": ", 2);
            kit.run(parts[0], parts[1], () -> {
                try (Case at = new Case()) {
                    entry.getValue().run(at);
                }
            });
        }
        kit.exit();
    }
}
