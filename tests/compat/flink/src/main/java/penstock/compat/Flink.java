// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Kit.want;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.restartstrategy.RestartStrategies;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.pulsar.sink.PulsarSink;
import org.apache.flink.connector.pulsar.sink.PulsarSinkOptions;
import org.apache.flink.connector.pulsar.source.PulsarSource;
import org.apache.flink.connector.pulsar.source.PulsarSourceOptions;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StartCursor;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StopCursor;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Jobs of Flink, each on a cluster in this process, that copy numbers from one topic to another with Flink's connector
 * for Pulsar. What fails meanwhile is not left to chance: `Troubles` says after how many numbers.
 */
public final class Flink {
    private static final int CASE_TIMEOUT_S = 900;
    private static final int COPIED = 20_000;
    /** Fewer, because each is sent in a transaction that waits for its checkpoint, and much is copied again. */
    private static final int COPIED_ONCE = 10_000;
    private static final int KILLS = 10;
    private static final int CHECKPOINT_MS = 300;
    private static final int RESTART_MS = 200;
    /**
     * A job that fails between two steps of its checkpoint leaves a transaction that only its timeout ends. It must be
     * longer than the broker and the job take to start again, because the sink drops what has timed out.
     */
    private static final long TRANSACTION_TIMEOUT_MS = 180_000;
    private static final int NEXT_TIMEOUT_S = 240;

    private static int turn;

    private Flink() {
    }

    public static void main(String[] arguments) throws Exception {
        Kit kit = new Kit("flink", CASE_TIMEOUT_S, arguments);
        kit.run("flink-at-least-once", COPIED + " numbers are copied from a topic to another",
                () -> copies(COPIED, DeliveryGuarantee.AT_LEAST_ONCE, 0));
        turn++;
        kit.run("flink-exactly-once", "each number is there once though the operator fails",
                () -> copies(COPIED_ONCE, DeliveryGuarantee.EXACTLY_ONCE, 0));
        turn++;
        kit.run("flink-kills", "each number is there once though " + KILLS + " times the operator fails and the broker"
                + " is killed", () -> copies(COPIED_ONCE, DeliveryGuarantee.EXACTLY_ONCE, KILLS));
        kit.exit();
    }

    private static void copies(int count, DeliveryGuarantee guarantee, int kills) throws Exception {
        String namespace = "public/flink-" + ProcessHandle.current().pid() + "-" + turn;
        String from = "persistent://" + namespace + "/numbers";
        String to = "persistent://" + namespace + "/copy";
        // A producer sends again what the broker stored and could not confirm: transactions need deduplication, too.
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(Kit.turnOf("PULSAR_ADMIN_URLS", turn)).build()) {
            admin.namespaces().createNamespace(namespace);
            admin.namespaces().setDeduplicationStatus(namespace, true);
        }
        boolean once = guarantee == DeliveryGuarantee.EXACTLY_ONCE;
        MessageId last = write(from, count);
        Troubles.plan(count, kills, once ? 3 : 0);
        Configuration configuration = new Configuration();
        configuration.setString("taskmanager.memory.network.min", "16mb");
        configuration.setString("taskmanager.memory.network.max", "16mb");
        try (var environment = StreamExecutionEnvironment.createLocalEnvironment(1, configuration)) {
            environment.enableCheckpointing(CHECKPOINT_MS);
            environment.setRestartStrategy(RestartStrategies.fixedDelayRestart(Integer.MAX_VALUE, RESTART_MS));
            // When its consumer connects again, the connector's source passes what was not acknowledged on once more.
            var numbers = kills == 0 ? environment.fromSource(source(from, last), WatermarkStrategy.noWatermarks(),
                    "numbers") : environment.fromSequence(0, count - 1);
            numbers.map(Troubles::pass).returns(Types.LONG).sinkTo(sink(to, guarantee));
            environment.execute("copy");
        }
        Troubles.finish();
        check(to, count, once);
    }

    /** Without batches: the connector forgets the place in a batch, and a job that is restarted loses the rest of it. */
    private static MessageId write(String topic, int count) throws Exception {
        try (PulsarClient client = client(); Producer<Long> producer = client.newProducer(Schema.INT64).topic(topic)
                .enableBatching(false).blockIfQueueFull(true).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (long number = 0; number < count; number++) {
                sent.add(producer.sendAsync(number));
            }
            producer.flush();
            return sent.get(count - 1).get(1, TimeUnit.MINUTES);
        }
    }

    private static PulsarSource<Long> source(String topic, MessageId last) {
        return PulsarSource.builder().setServiceUrl(Kit.turnOf("PULSAR_URLS", turn))
                .setAdminUrl(Kit.turnOf("PULSAR_ADMIN_URLS", turn)).setTopics(topic).setSubscriptionName("flink")
                .setStartCursor(StartCursor.earliest()).setBoundedStopCursor(StopCursor.afterMessageId(last))
                .setConfig(PulsarSourceOptions.PULSAR_MAX_FETCH_RECORDS, 100)
                .setDeserializationSchema(Schema.INT64).build();
    }

    private static PulsarSink<Long> sink(String topic, DeliveryGuarantee guarantee) {
        return PulsarSink.builder().setServiceUrl(Kit.turnOf("PULSAR_URLS", turn))
                .setAdminUrl(Kit.turnOf("PULSAR_ADMIN_URLS", turn)).setTopics(topic)
                .setDeliveryGuarantee(guarantee)
                .setConfig(PulsarSinkOptions.PULSAR_WRITE_TRANSACTION_TIMEOUT, TRANSACTION_TIMEOUT_MS)
                .setSerializationSchema(Schema.INT64).build();
    }

    /** Every number must be there, and if `once`, none twice. The sink writes bytes, and the topic has no schema. */
    private static void check(String topic, int count, boolean once) throws Exception {
        BitSet found = new BitSet(count);
        int twice = 0;
        try (PulsarClient client = client(); var consumer = client.newConsumer(Schema.BYTES).topic(topic)
                .subscriptionName("check").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe()) {
            // That nothing comes twice can only be waited for.
            for (Message<byte[]> next; (next = consumer.receive(found.cardinality() < count ? NEXT_TIMEOUT_S : 2,
                    TimeUnit.SECONDS)) != null;) {
                int number = Math.toIntExact(Schema.INT64.decode(next.getValue()));
                twice += found.get(number) ? 1 : 0;
                found.set(number);
            }
        }
        want(found.cardinality() == count && !(once && twice > 0), "of", count, "numbers", count - found.cardinality(),
                "are missing, the first is", found.nextClearBit(0), "and", twice, "came again");
    }

    private static PulsarClient client() throws Exception {
        return PulsarClient.builder().serviceUrl(Kit.turnOf("PULSAR_URLS", turn)).build();
    }
}
