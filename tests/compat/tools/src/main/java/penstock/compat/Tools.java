// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/**
 * The everyday commands of pulsar-admin, each as a line somebody types, with what its answer must hold; then a run of
 * pulsar-perf. Each command asks the next broker: what one has changed, all show. One process for all commands: a
 * virtual machine for each would take longer than everything else.
 */
public final class Tools {
    private static final String NAME = "tools-" + ProcessHandle.current().pid();
    private static final String TENANT = NAME;
    private static final String NS = TENANT + "/ns";
    private static final String TOPIC = "persistent://" + NS + "/t";
    /** A case is many commands. */
    private static final int CASE_TIMEOUT_S = 120;

    private static final String[] URLS = System.getenv("PULSAR_URLS").split(",");
    private static final String[] ADMIN_URLS = System.getenv("PULSAR_ADMIN_URLS").split(",");

    private static final List<Path> CLIENT_CONFS = new ArrayList<>();
    private static int commands;

    private Tools() {
    }

    public static void main(String[] arguments) throws Exception {
        Kit kit = new Kit("tools", CASE_TIMEOUT_S, arguments);
        var mayExit = PulsarAdminTool.class.getDeclaredMethod("setAllowSystemExit", boolean.class);
        mayExit.setAccessible(true);
        mayExit.invoke(null, false);
        for (int i = 0; i < URLS.length; i++) {
            Path conf = Files.createTempFile("client", ".conf");
            Files.writeString(conf, "webServiceUrl=" + ADMIN_URLS[i] + "\nbrokerServiceUrl=" + URLS[i] + "\n");
            CLIENT_CONFS.add(conf);
        }
        kit.run("admin-namespaces", "tenants and namespaces are made and shown", Tools::namespaces);
        kit.run("admin-namespaces", "policies are set, shown and removed", Tools::policies);
        kit.run("resource-groups", "groups are made, attached, changed and deleted", Tools::resourceGroups);
        kit.run("admin-topics", "topics are made, shown and deleted", Tools::topics);
        kit.run("admin-topics", "policies of a topic are set, shown and removed", Tools::topicPolicies);
        kit.run("admin-topics", "a topic's messages are found, shown, counted and removed", Tools::messages);
        kit.run("admin-topics", "a topic's properties and permissions are set, shown and removed", Tools::ofOneTopic);
        kit.run("admin-topics", "partitions are shown, completed and terminated", Tools::partitions);
        kit.run("admin-subscriptions", "subscriptions are made, moved and deleted", Tools::subscriptions);
        kit.run("admin-subscriptions", "a subscription's messages expire, and its properties change", Tools::ofSubscriptions);
        kit.run("admin-schemas", "schemas are uploaded, shown and deleted", Tools::schemas);
        kit.run("admin-brokers", "brokers and their dynamic configuration", Tools::brokers);
        kit.run("admin-namespaces", "what was made is deleted again", Tools::cleanUp);
        kit.run("produce-async", "pulsar-perf produce", () -> perf("produce", "records sent", "-r", "2000", "-m", "4000"));
        kit.run("shared", "pulsar-perf consume",
                () -> perf("consume", "4000 records received", "-m", "4000", "-sp", "Earliest", "-st", "Shared"));
        for (Path conf : CLIENT_CONFS) {
            Files.delete(conf);
        }
        kit.exit();
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

    private static void resourceGroups() throws Exception {
        String group = "group-" + NAME;
        admin("resourcegroups create " + group + " --msg-publish-rate 100 --byte-publish-rate 100000");
        shows("resourcegroups list", group);
        shows("resourcegroups get " + group, "\"publishRateInMsgs\" : 100");
        shows("resourcegroups get " + group, "\"dispatchRateInMsgs\" : -1");
        admin("resourcegroups update " + group + " --msg-dispatch-rate 50");
        shows("resourcegroups get " + group, "\"dispatchRateInMsgs\" : 50");
        shows("resourcegroups get " + group, "\"publishRateInBytes\" : 100000");
        admin("namespaces set-resource-group " + NS + " --resource-group-name " + group);
        shows("namespaces get-resource-group " + NS, group);
        fails("resourcegroups delete " + group, "");
        admin("namespaces remove-resource-group " + NS);
        admin("resourcegroups delete " + group);
        fails("resourcegroups get " + group, "does not exist");
        fails("namespaces set-resource-group " + NS + " --resource-group-name " + group, "");
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

    private static void messages() throws Exception {
        String topic = TOPIC + "-m";
        admin("topics create " + topic);
        admin("topics create-subscription " + topic + " -s s");
        publish(topic, 5);
        String last = admin("topics last-message-id " + topic);
        String ledger = last.replaceAll("(?s).*\"ledgerId\" : (\\d+).*", "$1");
        shows("topics peek-messages " + topic + " -s s -n 5", "m-4");
        shows("topics examine-messages " + topic + " -i earliest -m 2", "m-1");
        shows("topics get-message-by-id " + topic + " -l " + ledger + " -e 3", "m-3");
        shows("topics get-message-id " + topic + " -d 2021-06-28T16:53:08Z", ledger);
        shows("topics analyze-backlog " + topic + " -s s", "\"messages\" : 5");
        admin("topics get-backlog-size " + topic + " -m " + ledger + ":0");
        shows("topics stats-internal " + topic, "\"numberOfEntries\" : 5");
        shows("topics info-internal " + topic, "\"ledgerId\"");
        admin("topics skip " + topic + " -s s -n 2");
        shows("topics peek-messages " + topic + " -s s -n 1", "m-2");
        admin("topics reset-cursor " + topic + " -s s -m " + ledger + ":0");
        admin("topics clear-backlog " + topic + " -s s");
        shows("topics stats " + topic, "\"msgBacklog\" : 0");
        admin("topics truncate " + topic);
        admin("topics trim-topic " + topic);
        admin("topics delete " + topic + " --force");
    }

    private static void ofOneTopic() throws Exception {
        String topic = TOPIC + "-one";
        admin("topics create " + topic);
        admin("topics update-properties " + topic + " -p colour=blue -p size=large");
        shows("topics get-properties " + topic, "large");
        admin("topics remove-properties " + topic + " -k size");
        hides("topics get-properties " + topic, "large");
        admin("topics grant-permission " + topic + " --role reader --actions consume");
        shows("topics permissions " + topic, "reader");
        admin("topics revoke-permission " + topic + " --role reader");
        hides("topics permissions " + topic, "reader");
        shows("topics bundle-range " + topic, "0x");
        admin("topics delete " + topic);
    }

    private static void partitions() throws Exception {
        String topic = TOPIC + "-parts";
        admin("topics create-partitioned-topic " + topic + " -p 5");
        admin("topics create-missed-partitions " + topic);
        shows("topics partitioned-lookup " + topic, "-partition-4");
        publish(topic, 10);
        shows("topics partitioned-stats " + topic, "\"msgInCounter\" : 10");
        shows("topics partitioned-stats-internal " + topic, "-partition-4");
        shows("topics stats " + topic + "-partition-3", "\"msgInCounter\" : 2");
        admin("topics create-subscription " + topic + " -s s");
        shows("topics subscriptions " + topic, "s");
        admin("topics unload " + topic);
        admin("topics compact " + topic);
        shows("topics partitioned-terminate " + topic, "4");
        admin("topics delete-partitioned-topic " + topic + " --force");
        hides("topics list " + NS, "-parts");
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

    private static void ofSubscriptions() throws Exception {
        String topic = TOPIC + "-sub";
        admin("topics create " + topic);
        admin("topics create-subscription " + topic + " -s s -p colour=blue");
        shows("topics get-subscription-properties " + topic + " -s s", "blue");
        admin("topics update-subscription-properties " + topic + " -s s -p size=large");
        shows("topics get-subscription-properties " + topic + " -s s", "large");
        publish(topic, 3);
        admin("topics expire-messages " + topic + " -s s -t 100000");
        admin("topics expire-messages-all-subscriptions " + topic + " -t 100000");
        shows("topics stats " + topic, "\"msgBacklog\" : 3");
        admin("namespaces clear-backlog " + NS + " -s s -force");
        shows("topics stats " + topic, "\"msgBacklog\" : 0");
        admin("namespaces unsubscribe " + NS + " -s s");
        hides("topics subscriptions " + topic, "s\n");
        admin("namespaces unload " + NS);
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

    private static String nextConf() {
        return CLIENT_CONFS.get(commands++ % CLIENT_CONFS.size()).toString();
    }

    private static Ran run(String line) throws Exception {
        List<String> words = new ArrayList<>(List.of(nextConf()));
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
            throw new AssertionError(line + " -> " + ran.text.strip());
        }
        return ran.text;
    }

    private static void shows(String line, String wanted) throws Exception {
        String text = admin(line);
        if (!text.contains(wanted)) {
            throw new AssertionError(line + " does not show " + wanted + ": " + text.strip());
        }
    }

    private static void hides(String line, String unwanted) throws Exception {
        String text = admin(line);
        if (text.contains(unwanted)) {
            throw new AssertionError(line + " still shows " + unwanted + ": " + text.strip());
        }
    }

    /** So many messages, to be counted and shown, through the next broker. */
    private static void publish(String topic, int count) throws Exception {
        String url = URLS[commands++ % URLS.length];
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).build();
                var producer = client.newProducer(Schema.STRING).topic(topic).enableBatching(false)
                        .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create()) {
            for (int i = 0; i < count; i++) {
                producer.send("m-" + i);
            }
        }
    }

    /** Topic policies of Apache Pulsar show up a moment after they were set. */
    private static void waitFor(String line, String wanted) throws Exception {
        for (int i = 0; !admin(line).contains(wanted); i++) {
            if (i == 50) {
                throw new AssertionError(line + " never showed " + wanted);
            }
            Thread.sleep(100);
        }
    }

    private static void fails(String line, String wanted) throws Exception {
        Ran ran = run(line);
        if (ran.well || !ran.text.toLowerCase().contains(wanted)) {
            throw new AssertionError(line + " should fail with '" + wanted + "', and said: " + ran.text.strip());
        }
    }

    /** pulsar-perf ends its own process, so it gets one. */
    private static void perf(String command, String wanted, String... options) throws Exception {
        String conf = nextConf();
        List<String> words = new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java"),
                "-Xmx512m", "-Dorg.slf4j.simpleLogger.logFile=System.out", "-cp", System.getProperty("java.class.path"),
                "org.apache.pulsar.testclient.PulsarPerfTestTool", conf, command,
                "-u", URLS[(commands - 1) % URLS.length]));
        words.addAll(List.of(options));
        words.add("persistent://public/default/" + NAME + "-perf");
        File output = File.createTempFile("perf", ".log");
        Process process = new ProcessBuilder(words).redirectErrorStream(true).redirectOutput(output).start();
        boolean ended = process.waitFor(60, TimeUnit.SECONDS);
        process.destroyForcibly();
        String text = Files.readString(output.toPath());
        output.delete();
        if (!ended || !text.contains(wanted)) {
            throw new AssertionError("pulsar-perf " + command + " ended: " + ended + ", its last words: "
                    + text.substring(Math.max(0, text.length() - 400)));
        }
    }
}
