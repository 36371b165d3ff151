// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Case.numbered;
import static penstock.compat.Case.nothing;
import static penstock.compat.Case.receive;
import static penstock.compat.Case.send;
import static penstock.compat.Kit.refused;
import static penstock.compat.Kit.want;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.policies.data.AuthAction;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.PublishRate;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.policies.data.TopicStats;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/** Every case, by "feature: what must hold". */
final class Cases {
    private static final Map<String, Case.Body> ALL = new LinkedHashMap<>();

    private Cases() {
    }

    /** A record, with the schema that the client derives from it. */
    public static class Person {
        public String name;
        public int age;
    }

    /** The same name with a field of another type. */
    public static class Impostor {
        public int name;
    }

    static Map<String, Case.Body> all() {
        producing();
        subscriptions();
        acknowledging();
        positions();
        topics();
        transactions();
        schemas();
        administration();
        return ALL;
    }

    private static void add(String name, Case.Body body) {
        ALL.put(name, body);
    }

    private static void producing() {
        add("produce-sync: each send returns a later id", t -> {
            List<MessageId> ids = send(t.producer().create(), "a", "b");
            want(ids.get(1).compareTo(ids.get(0)) > 0, ids);
        });
        add("produce-async: a thousand sends are received in order", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            Producer<String> producer = t.producer().enableBatching(true).create();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (String text : numbered(1000)) {
                sent.add(producer.sendAsync(text));
            }
            CompletableFuture.allOf(sent.toArray(new CompletableFuture[0])).get(15, TimeUnit.SECONDS);
            want(receive(consumer, 1000).equals(Arrays.asList(numbered(1000))), "order was not kept");
        });
        add("batching: messages of one batch share an entry", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            Producer<String> producer = t.producer().enableBatching(true).batchingMaxMessages(10)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
            for (String text : numbered(10)) {
                producer.sendAsync(text);
            }
            long entry = ((MessageIdAdv) receive(consumer).getMessageId()).getEntryId();
            for (int i = 1; i < 10; i++) {
                MessageIdAdv id = (MessageIdAdv) receive(consumer).getMessageId();
                want(id.getEntryId() == entry && id.getBatchIndex() == i, "not one batch", id);
            }
        });
        add("compression: every codec comes back as it went", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            for (CompressionType codec : CompressionType.values()) {
                String text = (codec + " ").repeat(100);
                send(t.producer().compressionType(codec).create(), text);
                want(receive(consumer, 1).get(0).equals(text), codec);
            }
        });
        add("chunking: 12 MiB come back whole", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            String text = "0123456789abcdef".repeat(12 << 16);
            send(t.producer().enableChunking(true).create(), text);
            want(receive(consumer, 1).get(0).equals(text), "the payload changed");
        });
        add("keys-and-properties: key, ordering key, properties and event time arrive", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            t.producer().create().newMessage().value("x").key("k").orderingKey(new byte[] {1}).property("a", "b")
                    .eventTime(1234567).send();
            Message<String> message = receive(consumer);
            want(message.getKey().equals("k") && message.getOrderingKey()[0] == 1
                    && message.getProperty("a").equals("b") && message.getEventTime() == 1234567, message);
        });
        add("delayed: a delayed message comes late, one without delay before it", t -> {
            Consumer<String> consumer = t.consumer().subscriptionType(SubscriptionType.Shared).subscribe();
            Producer<String> producer = t.producer().create();
            producer.newMessage().value("late").deliverAfter(3, TimeUnit.SECONDS).send();
            send(producer, "now");
            want(receive(consumer, 2).equals(List.of("now", "late")), "wrong order");
        });
        add("access-exclusive: the second producer is fenced off, a shared one is refused", t -> {
            t.producer().accessMode(ProducerAccessMode.Exclusive).create();
            refused(PulsarClientException.ProducerFencedException.class,
                    () -> t.producer().accessMode(ProducerAccessMode.Exclusive).create());
            refused(PulsarClientException.ProducerBusyException.class, () -> t.producer().create());
        });
        add("access-wait: a waiting producer gets its turn", t -> {
            Producer<String> first = t.producer().accessMode(ProducerAccessMode.WaitForExclusive).create();
            var second = t.producer().accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
            Thread.sleep(500);
            want(!second.isDone(), "it did not wait");
            first.close();
            send(second.get(10, TimeUnit.SECONDS), "a");
        });
        add("access-fencing: the newcomer fences the holder off", t -> {
            Producer<String> first = t.producer().accessMode(ProducerAccessMode.Exclusive).create();
            Producer<String> second = t.producer().accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
            send(second, "a");
            refused(PulsarClientException.class, () -> first.send("b"));
        });
        add("deduplication: a sequence id that was sent before leaves nothing", t -> {
            t.admin.topics().createNonPartitionedTopic(t.topic);
            t.admin.topicPolicies().setDeduplicationStatus(t.topic, true);
            for (int i = 0; !Boolean.TRUE.equals(t.admin.topicPolicies().getDeduplicationStatus(t.topic)); i++) {
                Thread.sleep(50);
                want(i < 200, "the policy does not show");
            }
            Consumer<String> consumer = t.consumer().subscribe();
            Producer<String> producer = t.producer().producerName("p").create();
            for (long sequence : new long[] {1, 2, 2, 1, 3}) {
                producer.newMessage().value("v" + sequence).sequenceId(sequence).send();
            }
            want(receive(consumer, 3).equals(List.of("v1", "v2", "v3")), "duplicates came through");
            nothing(consumer, 300);
            producer.close();
            want(t.producer().producerName("p").create().getLastSequenceId() == 3, "the last sequence id is forgotten");
        });
        add("reconnect: producer and consumer go on after the topic was unloaded", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            Producer<String> producer = t.producer().create();
            send(producer, "a");
            want(receive(consumer, 1).equals(List.of("a")), "a");
            t.admin.topics().unload(t.topic);
            send(producer, "b");
            want(receive(consumer, 1).equals(List.of("b")), "b");
        });
        add("http-lookup: topics, partitions, patterns and schemas are found over HTTP", t -> {
            t.admin.topics().createPartitionedTopic(t.topic, 2);
            try (PulsarClient client = PulsarClient.builder().serviceUrl(t.adminUrl).build()) {
                want(client.getPartitionsForTopic(t.topic).get().size() == 2, "not two partitions");
                client.newProducer(Schema.JSON(Person.class)).topic(t.topic).create().send(new Person());
                client.newProducer(Schema.JSON(Person.class)).topic(t.topic + "-alone").create().send(new Person());
                Consumer<GenericRecord> consumer = client.newConsumer(Schema.AUTO_CONSUME())
                        .topicsPattern(t.topic + ".*").subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
                for (int i = 0; i < 2; i++) {
                    want(receive(consumer).getValue().getField("age").equals(0), "no record");
                }
            }
        });
    }

    /** A transaction of a client that may have some. */
    private static Transaction begin(PulsarClient client, long timeoutMillis) throws Exception {
        return client.newTransaction().withTransactionTimeout(timeoutMillis, TimeUnit.MILLISECONDS).build()
                .get(20, TimeUnit.SECONDS);
    }

    private static Producer<String> transacting(PulsarClient client, String topic) throws Exception {
        return client.newProducer(Schema.STRING).topic(topic).sendTimeout(0, TimeUnit.SECONDS).create();
    }

    private static Consumer<String> shared(PulsarClient client, String topic) throws Exception {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .subscribe();
    }

    private static void transactions() {
        add("transactions: what was sent to several topics comes together, in the order of each", t -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(t.url).enableTransaction(true).build()) {
                List<Consumer<String>> consumers = new ArrayList<>();
                List<Producer<String>> producers = new ArrayList<>();
                for (int i = 0; i < 4; i++) {
                    consumers.add(shared(client, t.topic + "-" + i));
                    producers.add(transacting(client, t.topic + "-" + i));
                }
                Transaction transaction = begin(client, 60_000);
                for (Producer<String> producer : producers) {
                    for (String text : numbered(3)) {
                        producer.newMessage(transaction).value(text).send();
                    }
                }
                for (Consumer<String> consumer : consumers) {
                    nothing(consumer, 300);
                }
                transaction.commit().get(20, TimeUnit.SECONDS);
                for (Consumer<String> consumer : consumers) {
                    want(receive(consumer, 3).equals(Arrays.asList(numbered(3))), "order was not kept");
                }
            }
        });
        add("transactions: what is aborted never comes, and what was sent after it does", t -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(t.url).enableTransaction(true).build()) {
                Consumer<String> consumer = shared(client, t.topic);
                Producer<String> producer = transacting(client, t.topic);
                Transaction transaction = begin(client, 60_000);
                producer.newMessage(transaction).value("aborted").send();
                producer.newMessage().value("after").send();
                nothing(consumer, 300);
                transaction.abort().get(20, TimeUnit.SECONDS);
                want(receive(consumer, 1).equals(List.of("after")), "not what was sent after it");
                nothing(consumer, 300);
            }
        });
        add("transactions: acknowledgements count with the commit, and are undone by an abort", t -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(t.url).enableTransaction(true).build()) {
                Consumer<String> consumer = shared(client, t.topic);
                transacting(client, t.topic).send("a");
                Transaction aborted = begin(client, 60_000);
                consumer.acknowledgeAsync(receive(consumer).getMessageId(), aborted).get(20, TimeUnit.SECONDS);
                aborted.abort().get(20, TimeUnit.SECONDS);
                Message<String> again = receive(consumer);
                want(again.getValue().equals("a"), again.getValue());
                Transaction committed = begin(client, 60_000);
                consumer.acknowledgeAsync(again.getMessageId(), committed).get(20, TimeUnit.SECONDS);
                committed.commit().get(20, TimeUnit.SECONDS);
                consumer.redeliverUnacknowledgedMessages();
                nothing(consumer, 500);
                consumer.close();
                nothing(shared(client, t.topic), 500);
            }
        });
        add("transactions: a message of one transaction is refused to another", t -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(t.url).enableTransaction(true).build()) {
                Consumer<String> consumer = shared(client, t.topic);
                transacting(client, t.topic).send("a");
                MessageId id = receive(consumer).getMessageId();
                Transaction first = begin(client, 60_000);
                Transaction second = begin(client, 60_000);
                consumer.acknowledgeAsync(id, first).get(20, TimeUnit.SECONDS);
                Exception refused = refused(Exception.class,
                        () -> consumer.acknowledgeAsync(id, second).get(20, TimeUnit.SECONDS));
                want(refused.getCause() instanceof PulsarClientException.TransactionConflictException, refused);
                second.abort().get(20, TimeUnit.SECONDS);
                first.commit().get(20, TimeUnit.SECONDS);
            }
        });
        add("transactions: read and write as one, to other topics and partitions", t -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(t.url).enableTransaction(true).build()) {
                String out = t.topic + "-out";
                t.admin.topics().createPartitionedTopic(out, 3);
                Consumer<String> in = shared(client, t.topic);
                Consumer<String> results = shared(client, out);
                Producer<String> feeding = transacting(client, t.topic);
                Producer<String> writing = transacting(client, out);
                for (String text : numbered(30)) {
                    feeding.send(text);
                }
                for (int round = 0; round < 3; round++) {
                    Transaction transaction = begin(client, 60_000);
                    for (int i = 0; i < 10; i++) {
                        Message<String> message = receive(in);
                        writing.newMessage(transaction).value(message.getValue()).send();
                        in.acknowledgeAsync(message.getMessageId(), transaction).get(20, TimeUnit.SECONDS);
                    }
                    transaction.commit().get(20, TimeUnit.SECONDS);
                }
                List<String> found = receive(results, 30);
                Collections.sort(found);
                want(found.equals(Arrays.asList(numbered(30))), found);
                nothing(in, 300);
            }
        });
        add("transactions: one that is open for too long is aborted", t -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(t.url).enableTransaction(true).build()) {
                Consumer<String> consumer = shared(client, t.topic);
                Producer<String> producer = transacting(client, t.topic);
                Transaction transaction = begin(client, 1_500);
                producer.newMessage(transaction).value("late").send();
                producer.send("after");
                want(receive(consumer, 1).equals(List.of("after")), "not what was sent after it");
                refused(Exception.class, () -> transaction.commit().get(20, TimeUnit.SECONDS));
            }
        });
    }

    private static void subscriptions() {
        add("exclusive: a second exclusive consumer is refused", t -> {
            t.consumer().subscribe();
            refused(PulsarClientException.ConsumerBusyException.class, () -> t.consumer().subscribe());
        });
        add("failover: the active consumer is told, and the other takes over", t -> {
            Map<String, Boolean> active = new java.util.concurrent.ConcurrentHashMap<>();
            ConsumerEventListener listener = new ConsumerEventListener() {
                @Override
                public void becameActive(Consumer<?> consumer, int partition) {
                    active.put(consumer.getConsumerName(), true);
                }

                @Override
                public void becameInactive(Consumer<?> consumer, int partition) {
                    active.put(consumer.getConsumerName(), false);
                }
            };
            Map<String, Consumer<String>> consumers = new HashMap<>();
            for (String name : List.of("a", "b")) {
                consumers.put(name, t.consumer().subscriptionType(SubscriptionType.Failover).consumerName(name)
                        .consumerEventListener(listener).subscribe());
            }
            Producer<String> producer = t.producer().create();
            for (int i = 0; active.size() < 2 || !active.containsValue(true); i++) {
                Thread.sleep(50);
                want(i < 200, "nobody became active", active);
            }
            Thread.sleep(1500); // a change of mind of the broker would be seen by now
            String first = active.get("a") ? "a" : "b";
            String second = first.equals("a") ? "b" : "a";
            send(producer, "one");
            want(receive(consumers.get(first), 1).equals(List.of("one")), "one");
            consumers.get(first).close();
            send(producer, "two");
            want(receive(consumers.get(second), 1).equals(List.of("two")) && active.get(second), active);
        });
        add("shared: two consumers share everything between them", t -> {
            Consumer<String> first = t.consumer().subscriptionType(SubscriptionType.Shared).subscribe();
            Consumer<String> second = t.consumer().subscriptionType(SubscriptionType.Shared).subscribe();
            send(t.producer().create(), numbered(100));
            List<String> got = receiveFromBoth(first, second, 100);
            Collections.sort(got);
            want(got.equals(Arrays.asList(numbered(100))), "something is missing or twice");
        });
        add("key-shared: each key goes to one consumer, in order", t -> keyShared(t,
                KeySharedPolicy.autoSplitHashRange()));
        add("key-shared-sticky: overlapping ranges are refused, keys go to their range", t -> {
            t.consumer().subscriptionType(SubscriptionType.Key_Shared)
                    .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 32767))).subscribe();
            Consumer<String> high = t.consumer().subscriptionType(SubscriptionType.Key_Shared)
                    .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(32768, 65535))).subscribe();
            refused(PulsarClientException.ConsumerAssignException.class,
                    () -> t.consumer().subscriptionType(SubscriptionType.Key_Shared)
                            .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(5, 10))).subscribe());
            t.producer().create().newMessage().key("hello").value("x").send(); // its hash is 64071
            receive(high);
        });
        add("initial-position: earliest sees what was there before, latest does not", t -> {
            Producer<String> producer = t.producer().create();
            send(producer, "before");
            Consumer<String> early = t.consumer().subscriptionName("e")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            Consumer<String> late = t.consumer().subscriptionName("l").subscribe();
            send(producer, "after");
            want(receive(early, 2).equals(List.of("before", "after")), "earliest");
            want(receive(late, 1).equals(List.of("after")), "latest");
        });
        add("subscription-properties: they are shown in the statistics", t -> {
            t.consumer().subscriptionProperties(Map.of("a", "b")).subscribe();
            var properties = t.admin.topics().getStats(t.topic).getSubscriptions().get("s").getSubscriptionProperties();
            want("b".equals(properties.get("a")), properties);
        });
        add("unsubscribe: the subscription is gone", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            consumer.unsubscribe();
            want(t.admin.topics().getSubscriptions(t.topic).isEmpty(), "it is still listed");
        });
    }

    private static List<String> receiveFromBoth(Consumer<String> first, Consumer<String> second, int count)
            throws Exception {
        List<String> got = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(15);
        while (got.size() < count) {
            want(System.nanoTime() < deadline, "only", got.size(), "of", count, "came");
            for (Consumer<String> consumer : List.of(first, second)) {
                Message<String> message = consumer.receive(50, TimeUnit.MILLISECONDS);
                if (message != null) {
                    got.add(message.getValue());
                    consumer.acknowledge(message);
                }
            }
        }
        return got;
    }

    private static void keyShared(Case t, KeySharedPolicy policy) throws Exception {
        List<Consumer<String>> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            consumers.add(t.consumer().subscriptionType(SubscriptionType.Key_Shared).keySharedPolicy(policy)
                    .subscribe());
        }
        Producer<String> producer = t.producer().enableBatching(true).batcherBuilder(BatcherBuilder.KEY_BASED).create();
        for (int i = 0; i < 200; i++) {
            producer.newMessage().key("key-" + i % 10).value("%04d".formatted(i)).sendAsync();
        }
        producer.flush();
        Map<String, Consumer<String>> owner = new HashMap<>();
        Map<String, String> last = new HashMap<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(15);
        for (int count = 0; count < 200;) {
            want(System.nanoTime() < deadline, "only", count, "of 200 came");
            for (Consumer<String> consumer : consumers) {
                Message<String> message = consumer.receive(50, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                count++;
                Consumer<String> before = owner.put(message.getKey(), consumer);
                want(before == null || before == consumer, message.getKey(), "went to two consumers");
                String previous = last.put(message.getKey(), message.getValue());
                want(previous == null || previous.compareTo(message.getValue()) < 0, message.getKey(), "out of order");
                consumer.acknowledge(message);
            }
        }
    }

    private static void acknowledging() {
        add("ack-individual: what is not acknowledged comes again to the next consumer", t -> {
            Consumer<String> consumer = t.consumer().subscriptionType(SubscriptionType.Shared).subscribe();
            send(t.producer().create(), "a", "b", "c");
            receive(consumer);
            consumer.acknowledge(receive(consumer));
            consumer.close();
            List<String> got = receive(t.consumer().subscriptionType(SubscriptionType.Shared).subscribe(), 2);
            Collections.sort(got);
            want(got.equals(List.of("a", "c")), got);
        });
        add("ack-cumulative: one acknowledgement covers all before it", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            send(t.producer().create(), "a", "b", "c");
            receive(consumer);
            consumer.acknowledgeCumulative(receive(consumer));
            consumer.close();
            want(receive(t.consumer().subscribe(), 1).equals(List.of("c")), "it did not cover");
        });
        add("ack-batch-index: acknowledged members of a batch do not come again", t -> {
            var builder = t.consumer().subscriptionType(SubscriptionType.Shared).enableBatchIndexAcknowledgment(true);
            Consumer<String> consumer = builder.subscribe();
            Producer<String> producer = t.producer().enableBatching(true).batchingMaxMessages(5)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
            for (String text : numbered(5)) {
                producer.sendAsync(text);
            }
            for (int i = 0; i < 5; i++) {
                Message<String> message = receive(consumer);
                if (i % 2 == 0) {
                    consumer.acknowledge(message);
                }
            }
            consumer.close();
            List<String> got = receive(t.consumer().subscriptionType(SubscriptionType.Shared)
                    .enableBatchIndexAcknowledgment(true).subscribe(), 2);
            want(got.equals(List.of("m-0001", "m-0003")), got);
        });
        add("ack-receipt: an acknowledgement waits for the broker's answer", t -> {
            Consumer<String> consumer = t.consumer().isAckReceiptEnabled(true).subscribe();
            send(t.producer().create(), "a");
            consumer.acknowledgeAsync(receive(consumer)).get(10, TimeUnit.SECONDS);
        });
        add("negative-ack: it comes again", t -> {
            Consumer<String> consumer = t.consumer().negativeAckRedeliveryDelay(300, TimeUnit.MILLISECONDS).subscribe();
            send(t.producer().create(), "a");
            consumer.negativeAcknowledge(receive(consumer));
            want(receive(consumer, 1).equals(List.of("a")), "another message came");
        });
        add("ack-timeout: what is not acknowledged in time comes again", t -> {
            Consumer<String> consumer = t.consumer().subscriptionType(SubscriptionType.Shared)
                    .ackTimeout(1, TimeUnit.SECONDS).subscribe();
            send(t.producer().create(), "a");
            receive(consumer);
            want(receive(consumer, 1).equals(List.of("a")), "another message came");
        });
        add("redelivery-count: it grows with each delivery", t -> {
            Consumer<String> consumer = t.consumer().subscriptionType(SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe();
            send(t.producer().create(), "a");
            for (int count = 0; count < 3; count++) {
                Message<String> message = receive(consumer);
                want(message.getRedeliveryCount() == count, message.getRedeliveryCount(), "want", count);
                consumer.negativeAcknowledge(message);
            }
        });
        add("dead-letter: after its deliveries a message goes to the dead-letter topic", t -> {
            Consumer<String> dead = t.client.newConsumer(Schema.STRING).topic(t.topic + "-s-DLQ").subscriptionName("d")
                    .subscribe();
            Consumer<String> consumer = t.consumer().subscriptionType(SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS)
                    .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(1).build()).subscribe();
            send(t.producer().create(), "a");
            consumer.negativeAcknowledge(receive(consumer));
            consumer.negativeAcknowledge(receive(consumer));
            want(receive(dead, 1).equals(List.of("a")), "another message came");
        });
        add("retry-letter: a message told to come later comes through the retry topic", t -> {
            Consumer<String> consumer = t.consumer().subscriptionType(SubscriptionType.Shared).enableRetry(true)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(3).build()).subscribe();
            send(t.producer().create(), "a");
            consumer.reconsumeLater(receive(consumer), 500, TimeUnit.MILLISECONDS);
            Message<String> again = receive(consumer);
            want("1".equals(again.getProperty("RECONSUMETIMES")), again.getProperties());
        });
    }

    private static void positions() {
        add("seek-id: seeking delivers what is behind the id, or the id too when told so", t -> {
            Producer<String> producer = t.producer().create();
            Consumer<String> consumer = t.consumer().subscribe();
            List<MessageId> ids = send(producer, "a", "b", "c");
            receive(consumer, 3);
            consumer.seek(ids.get(0));
            want(receive(consumer, 1).equals(List.of("b")), "exclusive");
            consumer.close();
            Consumer<String> inclusive = t.consumer().startMessageIdInclusive().subscribe();
            inclusive.seek(ids.get(0));
            want(receive(inclusive, 1).equals(List.of("a")), "inclusive");
        });
        add("receiving: a listener, by the batch, and without a queue", t -> {
            List<String> heard = Collections.synchronizedList(new ArrayList<>());
            t.consumer().subscriptionName("listens").messageListener((consumer, message) -> {
                heard.add(message.getValue());
                consumer.acknowledgeAsync(message);
            }).subscribe();
            Consumer<String> batches = t.consumer().batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(4)
                    .timeout(5, TimeUnit.SECONDS).build()).subscribe();
            Consumer<String> without = t.consumer().subscriptionName("without").receiverQueueSize(0).subscribe();
            List<String> wanted = Arrays.asList(numbered(8));
            send(t.producer().create(), numbered(8));
            List<String> got = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                Messages<String> messages = batches.batchReceive();
                want(messages.size() == 4, "a batch of", messages.size());
                messages.forEach(message -> got.add(message.getValue()));
            }
            want(got.equals(wanted), got);
            List<String> one = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                one.add(without.receive().getValue());
            }
            want(one.equals(wanted), one);
            for (int i = 0; i < 150 && heard.size() < 8; i++) {
                Thread.sleep(100);
            }
            want(heard.equals(wanted), heard);
        });
        add("seek-time: seeking to the past delivers all of it, on every type", t -> {
            long before = System.currentTimeMillis() - 1000;
            send(t.producer().create(), "a", "b");
            for (SubscriptionType type : SubscriptionType.values()) {
                Consumer<String> consumer = t.consumer().subscriptionName(type.name()).subscriptionType(type)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
                receive(consumer, 2);
                consumer.seek(before);
                want(receive(consumer, 1).equals(List.of("a")), type);
            }
        });
        add("last-message-id: it is that of the last send", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            List<MessageId> ids = send(t.producer().create(), "a", "b");
            MessageIdAdv last = (MessageIdAdv) consumer.getLastMessageIds().get(0);
            want(last.getEntryId() == ((MessageIdAdv) ids.get(1)).getEntryId(), last, ids);
        });
        add("end-of-topic: a consumer is told when a terminated topic is drained", t -> {
            Consumer<String> consumer = t.consumer().subscribe();
            Producer<String> producer = t.producer().create();
            send(producer, "a");
            t.admin.topics().terminateTopic(t.topic);
            want(!consumer.hasReachedEndOfTopic(), "too early");
            receive(consumer, 1);
            for (int i = 0; !consumer.hasReachedEndOfTopic(); i++) {
                Thread.sleep(50);
                want(i < 200, "it was not told");
            }
            refused(PulsarClientException.TopicTerminatedException.class, () -> producer.send("b"));
        });
        add("reader: it begins where it is told", t -> {
            List<MessageId> ids = send(t.producer().create(), numbered(10));
            try (Reader<String> reader = t.client.newReader(Schema.STRING).topic(t.topic).startMessageId(ids.get(4))
                    .create()) {
                want(reader.readNext(10, TimeUnit.SECONDS).getValue().equals("m-0005"), "wrong place");
            }
        });
        add("reader-has-next: it knows the end", t -> {
            send(t.producer().create(), "a", "b");
            try (Reader<String> reader = t.client.newReader(Schema.STRING).topic(t.topic)
                    .startMessageId(MessageId.earliest).create()) {
                int count = 0;
                while (reader.hasMessageAvailable()) {
                    reader.readNext(10, TimeUnit.SECONDS);
                    count++;
                }
                want(count == 2, "read", count);
            }
        });
        add("read-compacted: the last value of each key is left", t -> {
            Producer<String> producer = t.producer().create();
            for (int i = 0; i < 6; i++) {
                producer.newMessage().key("k" + i % 2).value("v" + i).send();
            }
            t.admin.topics().triggerCompaction(t.topic);
            LongRunningProcessStatus status = t.admin.topics().compactionStatus(t.topic);
            while (status.status != LongRunningProcessStatus.Status.SUCCESS) {
                want(status.status != LongRunningProcessStatus.Status.ERROR, status.lastError);
                Thread.sleep(50);
                status = t.admin.topics().compactionStatus(t.topic);
            }
            Consumer<String> consumer = t.consumer().readCompacted(true)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            want(receive(consumer, 2).equals(List.of("v4", "v5")), "wrong values");
        });
        add("table-view: it shows the last value of each key", t -> {
            Producer<String> producer = t.producer().create();
            for (int i = 0; i < 4; i++) {
                producer.newMessage().key("k" + i % 2).value("v" + i).send();
            }
            try (TableView<String> view = t.client.newTableView(Schema.STRING).topic(t.topic).create()) {
                want(view.size() == 2 && view.get("k1").equals("v3"), view.entrySet());
            }
        });
    }

    private static void topics() {
        add("partitioned: all partitions are written and read", t -> {
            t.admin.topics().createPartitionedTopic(t.topic, 3);
            Consumer<String> consumer = t.consumer().subscribe();
            send(t.producer().create(), numbered(30));
            List<String> got = receive(consumer, 30);
            Collections.sort(got);
            want(got.equals(Arrays.asList(numbered(30))), "something is missing");
            want(t.client.getPartitionsForTopic(t.topic).get().size() == 3, "partitions");
            want(t.admin.topics().getPartitionedStats(t.topic, true).getPartitions().size() == 3, "statistics");
        });
        add("partition-growth: producer and consumer use partitions that were added", t -> {
            t.admin.topics().createPartitionedTopic(t.topic, 1);
            Consumer<String> consumer = t.consumer().autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
            Producer<String> producer = t.producer().autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
            t.admin.topics().updatePartitionedTopic(t.topic, 2);
            send(producer, "a", "b");
            while (!receive(consumer).getTopicName().endsWith("-partition-1")) {
                send(producer, "a", "b");
            }
        });
        add("multi-topics: one consumer reads several topics", t -> {
            Consumer<String> consumer = t.client.newConsumer(Schema.STRING).topics(List.of(t.topic, t.topic + "-other"))
                    .subscriptionName("s").subscribe();
            send(t.producer().create(), "a");
            send(t.producer().topic(t.topic + "-other").create(), "b");
            List<String> got = receive(consumer, 2);
            Collections.sort(got);
            want(got.equals(List.of("a", "b")), got);
        });
        add("pattern: topics that match are read, also those made later", t -> {
            send(t.producer().topic(t.topic + "-1").create(), "old");
            Consumer<String> consumer = t.client.newConsumer(Schema.STRING).subscriptionName("s")
                    .topicsPattern(Pattern.compile("public/default/" + t.name + "-.*"))
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            want(receive(consumer, 1).equals(List.of("old")), "old");
            // The client polls every minute: what comes within the case's time was announced by the broker.
            send(t.producer().topic(t.topic + "-2").create(), "new");
            want(receive(consumer, 1).equals(List.of("new")), "new");
        });
        add("pattern: many consumers of topics with long names share what old and new ones bring", t -> {
            var came = new java.util.concurrent.LinkedBlockingQueue<String>();
            String longName = t.topic + "-%02d-" + "x".repeat(400);
            for (int i = 0; i < 12; i++) {
                send(t.producer().topic(longName.formatted(i)).create(), "m" + i);
            }
            for (int i = 0; i < 8; i++) {
                t.client.newConsumer(Schema.STRING).subscriptionName("s").subscriptionType(SubscriptionType.Shared)
                        .topicsPattern(Pattern.compile("public/default/" + t.name + "-.*"))
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .messageListener((consumer, message) -> {
                            came.add(message.getValue());
                            consumer.acknowledgeAsync(message);
                        }).subscribe();
            }
            for (int i = 12; i < 24; i++) {
                send(t.producer().topic(longName.formatted(i)).create(), "m" + i);
            }
            var seen = new java.util.HashSet<String>();
            for (int i = 0; i < 24; i++) {
                String text = came.poll(15, java.util.concurrent.TimeUnit.SECONDS);
                want(text != null && seen.add(text), "after", seen.size(), "came", text);
            }
        });
        add("non-persistent: messages reach whoever is there", t -> {
            String topic = t.topic.replace("persistent", "non-persistent");
            Consumer<String> consumer = t.client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
                    .subscribe();
            send(t.producer().topic(topic).create(), "a");
            receive(consumer);
        });
    }

    private static void schemas() {
        add("schema-primitive: numbers, booleans and bytes", t -> {
            primitive(t, Schema.INT64, 42L);
            primitive(t, Schema.DOUBLE, 4.2);
            primitive(t, Schema.BOOL, true);
            primitive(t, Schema.LOCAL_DATE, java.time.LocalDate.of(2026, 11, 21));
        });
        add("schema-json: a record", t -> record(t, Schema.JSON(Person.class)));
        add("schema-avro: a record", t -> record(t, Schema.AVRO(Person.class)));
        add("schema-key-value: key and value have schemas of their own, in both encodings", t -> {
            for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
                var schema = Schema.KeyValue(Schema.STRING, Schema.AVRO(Person.class), encoding);
                String topic = t.topic + encoding;
                var consumer = t.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Person ada = new Person();
                ada.name = "Ada";
                t.client.newProducer(schema).topic(topic).create().send(new KeyValue<>("k", ada));
                var got = receive(consumer).getValue();
                want(got.getKey().equals("k") && got.getValue().name.equals("Ada"), encoding);
            }
        });
        add("schema-evolution: an incompatible schema is refused", t -> {
            t.client.newProducer(Schema.AVRO(Person.class)).topic(t.topic).create();
            refused(PulsarClientException.IncompatibleSchemaException.class, () -> t.client
                    .newProducer(Schema.NATIVE_AVRO(new org.apache.pulsar.shade.org.apache.avro.Schema.Parser().parse(
                            Case.PERSON.replace("[\"null\",\"string\"],\"default\":null", "\"long\""))))
                    .topic(t.topic).create());
        });
        add("schema-auto: AUTO_CONSUME reads records, AUTO_PRODUCE checks them", t -> {
            Person ada = new Person();
            ada.name = "Ada";
            var consumer = t.client.newConsumer(Schema.AUTO_CONSUME()).topic(t.topic).subscriptionName("s").subscribe();
            t.client.newProducer(Schema.AVRO(Person.class)).topic(t.topic).create().send(ada);
            want(((GenericRecord) receive(consumer).getValue()).getField("name").equals("Ada"), "AUTO_CONSUME");
            Producer<byte[]> auto = t.client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(t.topic).create();
            auto.send(Schema.AVRO(Person.class).encode(ada));
            want(((GenericRecord) receive(consumer).getValue()).getField("name").equals("Ada"), "AUTO_PRODUCE");
        });
    }

    private static <T> void primitive(Case t, Schema<T> schema, T value) throws Exception {
        String topic = t.topic + schema.getSchemaInfo().getType();
        Consumer<T> consumer = t.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        t.client.newProducer(schema).topic(topic).create().send(value);
        want(receive(consumer).getValue().equals(value), schema.getSchemaInfo().getType());
    }

    private static void record(Case t, Schema<Person> schema) throws Exception {
        Consumer<Person> consumer = t.client.newConsumer(schema).topic(t.topic).subscriptionName("s").subscribe();
        Person ada = new Person();
        ada.name = "Ada";
        ada.age = 36;
        t.client.newProducer(schema).topic(t.topic).create().send(ada);
        Message<Person> message = receive(consumer);
        want(message.getValue().name.equals("Ada") && message.getValue().age == 36, message.getValue());
        want(message.getSchemaVersion().length == 8, "schema version");
    }

    private static void administration() {
        add("admin-topics: created, listed, measured, deleted", t -> {
            t.admin.topics().createNonPartitionedTopic(t.topic);
            want(t.admin.topics().getList("public/default").contains(t.topic), "it is not listed");
            t.consumer().subscribe();
            Producer<String> producer = t.producer().producerName("p").create();
            send(producer, "a", "b");
            TopicStats stats = t.admin.topics().getStats(t.topic);
            want(stats.getMsgInCounter() == 2 && stats.getSubscriptions().get("s").getMsgBacklog() == 2
                    && stats.getPublishers().get(0).getProducerName().equals("p"), stats);
            want(t.admin.topics().getInternalStats(t.topic).numberOfEntries == 2, "internal statistics");
            want(t.admin.topics().getLastMessageId(t.topic).equals(t.admin.topics().getLastMessageId(t.topic)), "last");
            refused(PulsarAdminException.PreconditionFailedException.class, () -> {
                t.admin.topics().delete(t.topic);
                return null;
            });
            t.admin.topics().delete(t.topic, true);
            refused(PulsarAdminException.NotFoundException.class, () -> t.admin.topics().getStats(t.topic + "-none"));
        });
        add("admin-namespaces: tenant, namespace, policies, permissions", t -> {
            String tenant = t.name;
            String namespace = tenant + "/ns";
            String cluster = t.admin.clusters().getClusters().get(0);
            t.admin.tenants().createTenant(tenant,
                    TenantInfo.builder().adminRoles(Set.of("boss")).allowedClusters(Set.of(cluster)).build());
            want(t.admin.tenants().getTenantInfo(tenant).getAdminRoles().contains("boss"), "roles");
            t.admin.namespaces().createNamespace(namespace);
            t.admin.namespaces().setRetention(namespace, new RetentionPolicies(10, 5));
            want(t.admin.namespaces().getRetention(namespace).getRetentionTimeInMinutes() == 10, "retention");
            t.admin.namespaces().setNamespaceMessageTTL(namespace, 60);
            want(t.admin.namespaces().getNamespaceMessageTTL(namespace) == 60, "TTL");
            t.admin.namespaces().setBacklogQuota(namespace, BacklogQuota.builder().limitSize(1 << 20)
                    .retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build());
            want(t.admin.namespaces().getBacklogQuotaMap(namespace).values().iterator().next().getLimitSize() == 1 << 20,
                    "quota");
            t.admin.namespaces().setPublishRate(namespace, new PublishRate(100, 1000));
            want(t.admin.namespaces().getPublishRate(namespace).publishThrottlingRateInMsg == 100, "rate");
            t.admin.namespaces().grantPermissionOnNamespace(namespace, "role", Set.of(AuthAction.produce));
            want(t.admin.namespaces().getPermissions(namespace).get("role").contains(AuthAction.produce), "permission");
            want(t.admin.namespaces().getPolicies(namespace).retention_policies.getRetentionSizeInMB() == 5, "policies");
            want(t.admin.namespaces().getNamespaces(tenant).contains(namespace), "it is not listed");
            refused(PulsarAdminException.ConflictException.class, () -> {
                t.admin.namespaces().createNamespace(namespace);
                return null;
            });
            t.admin.namespaces().deleteNamespace(namespace);
            t.admin.tenants().deleteTenant(tenant);
            refused(PulsarAdminException.NotFoundException.class, () -> t.admin.tenants().getTenantInfo(tenant));
        });
        add("admin-subscriptions: create, skip, peek, reset, clear", t -> {
            List<MessageId> ids = send(t.producer().create(), numbered(5));
            t.admin.topics().createSubscription(t.topic, "a/b", MessageId.earliest);
            want(t.admin.topics().getSubscriptions(t.topic).equals(List.of("a/b")), "subscription");
            want(new String(t.admin.topics().peekMessages(t.topic, "a/b", 2).get(1).getData()).equals("m-0001"), "peek");
            t.admin.topics().skipMessages(t.topic, "a/b", 2);
            want(backlog(t) == 3, "skip");
            t.admin.topics().resetCursor(t.topic, "a/b", ids.get(1));
            want(backlog(t) == 4, "reset", backlog(t));
            t.admin.topics().resetCursor(t.topic, "a/b", 0);
            want(backlog(t) == 5, "reset to a time");
            t.admin.topics().skipAllMessages(t.topic, "a/b");
            want(backlog(t) == 0, "clear");
            t.admin.topics().deleteSubscription(t.topic, "a/b");
            want(new String(t.admin.topics().examineMessage(t.topic, "earliest", 1).getData()).equals("m-0000"), "examine");
        });
        add("admin-schemas: a schema is uploaded, read and deleted", t -> {
            t.admin.topics().createNonPartitionedTopic(t.topic);
            t.admin.schemas().createSchema(t.topic, SchemaInfo.builder().name("x").type(SchemaType.AVRO)
                    .schema(Case.PERSON.getBytes()).properties(Map.of()).build());
            SchemaInfo info = t.admin.schemas().getSchemaInfo(t.topic);
            want(info.getType() == SchemaType.AVRO && info.getSchemaDefinition().contains("Person"), info);
            want(t.admin.schemas().getAllSchemas(t.topic).size() == 1, "versions");
            t.admin.schemas().deleteSchema(t.topic);
        });
        add("admin-brokers: health, version, a dynamic setting", t -> {
            t.admin.brokers().healthcheck();
            want(!t.admin.brokers().getVersion().isEmpty(), "version");
            want(!t.admin.brokers().getActiveBrokers().isEmpty(), "brokers");
            t.admin.brokers().updateDynamicConfiguration("maxConcurrentLookupRequest", "40000");
            want("40000".equals(t.admin.brokers().getAllDynamicConfigurations().get("maxConcurrentLookupRequest")), "set");
            t.admin.brokers().deleteDynamicConfiguration("maxConcurrentLookupRequest");
            want(!t.admin.lookups().lookupTopic(t.topic).isEmpty(), "lookup");
        });
    }

    private static long backlog(Case t) throws Exception {
        return t.admin.topics().getStats(t.topic, true).getSubscriptions().get("a/b").getMsgBacklog();
    }
}
