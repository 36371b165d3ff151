// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * The everyday commands of pulsar-admin, each as a line somebody types, with what its answer must hold; then a run of
 * pulsar-perf. One process for all commands: a virtual machine for each would take longer than everything else.
 */
public final class Tools {
    private static final String NAME = "tools-" + ProcessHandle.current().pid();
    private static final String TENANT = NAME;
    private static final String NS = TENANT + "/ns";
    private static final String TOPIC = "persistent://" + NS + "/t";
    private static final PrintStream CONSOLE = System.out;

    private static Path clientConf;
    private static int failed;

    private Tools() {
    }

    private static final class Failure extends RuntimeException {
        Failure(String text) {
            super(text);
        }
    }

    public static void main(String[] arguments) throws Exception {
        var mayExit = PulsarAdminTool.class.getDeclaredMethod("setAllowSystemExit", boolean.class);
        mayExit.setAccessible(true);
        mayExit.invoke(null, false);
        clientConf = Files.createTempFile("client", ".conf");
        Files.writeString(clientConf, "webServiceUrl=" + System.getenv("PULSAR_ADMIN_URL") + "\nbrokerServiceUrl="
                + System.getenv("PULSAR_URL") + "\n");
        test("admin-namespaces", "tenants and namespaces are made and shown", Tools::namespaces);
        test("admin-namespaces", "policies are set, shown and removed", Tools::policies);
        test("admin-topics", "topics are made, shown and deleted", Tools::topics);
        test("admin-topics", "policies of a topic are set, shown and removed", Tools::topicPolicies);
        test("admin-subscriptions", "subscriptions are made, moved and deleted", Tools::subscriptions);
        test("admin-schemas", "schemas are uploaded, shown and deleted", Tools::schemas);
        test("admin-brokers", "brokers and their dynamic configuration", Tools::brokers);
        test("admin-namespaces", "what was made is deleted again", Tools::cleanUp);
        test("produce-async", "pulsar-perf produce", () -> perf("produce", "records sent", "-r", "2000", "-m", "4000"));
        test("shared", "pulsar-perf consume",
                () -> perf("consume", "4000 records received", "-m", "4000", "-sp", "Earliest", "-st", "Shared"));
        Files.delete(clientConf);
        System.exit(failed > 0 ? 1 : 0);
    }

    private static void namespaces() throws Exception {
        String cluster = admin("clusters list").strip().lines().findFirst().orElseThrow();
        admin("clusters get " + cluster);
        admin("tenants create " + TENANT + " --admin-roles boss --allowed-clusters " + cluster);
        shows("tenants list", TENANT);
        shows("tenants get " + TENANT, "boss");
        admin("tenants update " + TENANT + " --admin-roles chief");
        shows("tenants get " + TENANT, "chief");
        admin("namespaces create " + NS);
        shows("namespaces list " + TENANT, NS);
        shows("namespaces policies " + NS, "\"replication_clusters\"");
        shows("namespaces bundles " + NS, "0xffffffff");
        shows("namespaces get-clusters " + NS, cluster);
        fails("namespaces create " + NS, "already exists");
        fails("tenants get nobody-" + NAME, "");
    }

    private static void policies() throws Exception {
        admin("namespaces set-retention " + NS + " --time 10m --size 5M");
        shows("namespaces get-retention " + NS, "\"retentionTimeInMinutes\" : 10");
        admin("namespaces remove-retention " + NS);
        admin("namespaces set-message-ttl " + NS + " --messageTTL 60");
        shows("namespaces get-message-ttl " + NS, "60");
        admin("namespaces set-backlog-quota " + NS + " --limit 10M --policy producer_exception");
        shows("namespaces get-backlog-quotas " + NS, "producer_exception");
        admin("namespaces remove-backlog-quota " + NS);
        admin("namespaces set-publish-rate " + NS + " --msg-publish-rate 100");
        shows("namespaces get-publish-rate " + NS, "100");
        admin("namespaces remove-publish-rate " + NS);
        admin("namespaces set-dispatch-rate " + NS + " --msg-dispatch-rate 100");
        shows("namespaces get-dispatch-rate " + NS, "100");
        admin("namespaces remove-dispatch-rate " + NS);
        admin("namespaces set-subscribe-rate " + NS + " --subscribe-rate 5");
        shows("namespaces get-subscribe-rate " + NS, "5");
        admin("namespaces remove-subscribe-rate " + NS);
        admin("namespaces set-deduplication " + NS + " --enable");
        shows("namespaces get-deduplication " + NS, "true");
        admin("namespaces remove-deduplication " + NS);
        admin("namespaces set-max-producers-per-topic " + NS + " --max-producers-per-topic 7");
        shows("namespaces get-max-producers-per-topic " + NS, "7");
        admin("namespaces set-schema-compatibility-strategy " + NS + " --compatibility BACKWARD");
        shows("namespaces get-schema-compatibility-strategy " + NS, "BACKWARD");
        admin("namespaces set-auto-topic-creation " + NS + " --enable --type non-partitioned");
        shows("namespaces get-auto-topic-creation " + NS, "non-partitioned");
        admin("namespaces set-delayed-delivery " + NS + " --enable --time 2s");
        shows("namespaces get-delayed-delivery " + NS, "2000");
        admin("namespaces set-compaction-threshold " + NS + " --threshold 10M");
        shows("namespaces get-compaction-threshold " + NS, "10485760");
        admin("namespaces grant-permission " + NS + " --role reader --actions consume");
        shows("namespaces permissions " + NS, "reader");
        admin("namespaces revoke-permission " + NS + " --role reader");
    }

    private static void topics() throws Exception {
        admin("topics create " + TOPIC);
        admin("topics create-partitioned-topic " + TOPIC + "-p -p 2");
        shows("topics list " + NS, TOPIC);
        shows("topics list-partitioned-topics " + NS, TOPIC + "-p");
        admin("topics update-partitioned-topic " + TOPIC + "-p -p 3");
        shows("topics get-partitioned-topic-metadata " + TOPIC + "-p", "\"partitions\" : 3");
        shows("topics stats " + TOPIC, "\"msgInCounter\" : 0");
        shows("topics partitioned-stats " + TOPIC + "-p --per-partition", "-partition-2");
        shows("topics stats-internal " + TOPIC, "\"lastConfirmedEntry\"");
        shows("topics lookup " + TOPIC, "pulsar://");
        admin("topics unload " + TOPIC);
        shows("topics last-message-id " + TOPIC, "-1");
        admin("topics compact " + TOPIC);
        shows("topics compaction-status " + TOPIC, "ompact");
        shows("topics terminate " + TOPIC, "terminated");
        admin("topics delete-partitioned-topic " + TOPIC + "-p");
        admin("topics delete " + TOPIC);
        fails("topics stats " + TOPIC, "not found");
    }

    private static void topicPolicies() throws Exception {
        admin("topics create " + TOPIC + "-q");
        admin("topicPolicies set-retention " + TOPIC + "-q --time 10m --size 5M");
        waitFor("topicPolicies get-retention " + TOPIC + "-q", "\"retentionTimeInMinutes\" : 10");
        admin("topicPolicies set-message-ttl " + TOPIC + "-q --ttl 60");
        waitFor("topicPolicies get-message-ttl " + TOPIC + "-q", "60");
        admin("topicPolicies set-max-consumers " + TOPIC + "-q --max-consumers 3");
        waitFor("topicPolicies get-max-consumers " + TOPIC + "-q", "3");
        admin("topicPolicies set-publish-rate " + TOPIC + "-q --msg-publish-rate 100");
        waitFor("topicPolicies get-publish-rate " + TOPIC + "-q", "100");
        admin("topicPolicies remove-publish-rate " + TOPIC + "-q");
        admin("topics delete " + TOPIC + "-q --force");
    }

    private static void subscriptions() throws Exception {
        String topic = TOPIC + "-s";
        admin("topics create " + topic);
        admin("topics create-subscription " + topic + " -s a/b");
        shows("topics subscriptions " + topic, "a/b");
        admin("topics skip " + topic + " -s a/b -n 1");
        admin("topics clear-backlog " + topic + " -s a/b");
        admin("topics reset-cursor " + topic + " -s a/b -t 10m");
        fails("topics expire-messages " + topic + " -s a/b -t 10", "expire message"); // nothing is there to expire
        admin("topics unsubscribe " + topic + " -s a/b");
        admin("topics delete " + topic);
    }

    private static void schemas() throws Exception {
        String topic = TOPIC + "-schema";
        Path file = Files.createTempFile("schema", ".json");
        Files.writeString(file, "{\"type\": \"STRING\", \"schema\": \"\", \"properties\": {\"a\": \"b\"}}");
        admin("topics create " + topic);
        admin("schemas upload " + topic + " -f " + file);
        shows("schemas get " + topic, "STRING");
        admin("schemas delete " + topic);
        Files.delete(file);
        admin("topics delete " + topic + " --force");
    }

    private static void brokers() throws Exception {
        String cluster = admin("clusters list").strip().lines().findFirst().orElseThrow();
        shows("brokers healthcheck", "ok");
        shows("brokers version", ".");
        shows("brokers list " + cluster, ":");
        shows("brokers leader-broker", "http");
        shows("brokers list-dynamic-config", "maxConcurrentLookupRequest");
        admin("brokers update-dynamic-config --config maxConcurrentLookupRequest --value 40000");
        shows("brokers get-all-dynamic-config", "40000");
        admin("brokers delete-dynamic-config --config maxConcurrentLookupRequest");
        shows("brokers get-runtime-config", "maxConcurrentLookupRequest");
        fails("brokers update-dynamic-config --config noSuchKey --value 1", "non-dynamic");
    }

    private static void cleanUp() throws Exception {
        admin("namespaces delete " + NS);
        admin("tenants delete " + TENANT);
    }

    // -- running one command ------------------------------------------------------------------------------------------

    private record Ran(boolean well, String text) {
    }

    private static Ran run(String line) throws Exception {
        List<String> words = new ArrayList<>(List.of(clientConf.toString()));
        words.addAll(List.of(line.split(" ")));
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream captured = new PrintStream(said, true);
        PrintStream console = System.out;
        PrintStream errors = System.err;
        System.setOut(captured);
        System.setErr(captured);
        try {
            PulsarAdminTool.execute(words.toArray(new String[0]));
        } finally {
            System.setOut(console);
            System.setErr(errors);
        }
        var code = PulsarAdminTool.class.getDeclaredMethod("getLastExitCode");
        code.setAccessible(true);
        return new Ran((int) code.invoke(null) == 0, said.toString());
    }

    private static String admin(String line) throws Exception {
        Ran ran = run(line);
        if (!ran.well) {
            throw new Failure(line + " -> " + ran.text.strip());
        }
        return ran.text;
    }

    private static void shows(String line, String wanted) throws Exception {
        String text = admin(line);
        if (!text.contains(wanted)) {
            throw new Failure(line + " does not show " + wanted + ": " + text.strip());
        }
    }

    /** Topic policies of Apache Pulsar show up a moment after they were set. */
    private static void waitFor(String line, String wanted) throws Exception {
        for (int i = 0; !admin(line).contains(wanted); i++) {
            if (i == 50) {
                throw new Failure(line + " never showed " + wanted);
            }
            Thread.sleep(100);
        }
    }

    private static void fails(String line, String wanted) throws Exception {
        Ran ran = run(line);
        if (ran.well || !ran.text.toLowerCase().contains(wanted)) {
            throw new Failure(line + " should fail with '" + wanted + "', and said: " + ran.text.strip());
        }
    }

    /** pulsar-perf ends its own process, so it gets one. */
    private static void perf(String command, String wanted, String... options) throws Exception {
        List<String> words = new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java"),
                "-Xmx512m", "-Dorg.slf4j.simpleLogger.logFile=System.out", "-cp", System.getProperty("java.class.path"),
                "org.apache.pulsar.testclient.PulsarPerfTestTool", clientConf.toString(), command,
                "-u", System.getenv("PULSAR_URL")));
        words.addAll(List.of(options));
        words.add("persistent://public/default/" + NAME + "-perf");
        File output = File.createTempFile("perf", ".log");
        Process process = new ProcessBuilder(words).redirectErrorStream(true).redirectOutput(output).start();
        boolean ended = process.waitFor(60, TimeUnit.SECONDS);
        process.destroyForcibly();
        String text = Files.readString(output.toPath());
        output.delete();
        if (!ended || !text.contains(wanted)) {
            throw new Failure("pulsar-perf " + command + " ended: " + ended + ", its last words: "
                    + text.substring(Math.max(0, text.length() - 400)));
        }
    }

    // -- telling ------------------------------------------------------------------------------------------------------

    private interface Body {
        void run() throws Exception;
    }

    private static void test(String feature, String name, Body body) throws Exception {
        String why = "";
        try {
            body.run();
        } catch (Failure failure) {
            why = failure.getMessage().replaceAll("\\s+", " ");
            failed++;
        }
        String outcome = why.isEmpty() ? "passed" : "failed";
        CONSOLE.printf("%-7s %-24s %s %s%n", outcome, feature, name, why);
        String line = "{\"client\": \"tools\", \"feature\": \"%s\", \"case\": \"%s\", \"outcome\": \"%s\", \"why\": \"%s\"}%n"
                .formatted(feature, name, outcome, why.replace("\\", "\\\\").replace("\"", "\\\""));
        Files.writeString(Path.of(System.getenv("COMPAT_RESULTS")), line, StandardOpenOption.CREATE,
                StandardOpenOption.APPEND);
    }
}
