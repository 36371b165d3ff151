// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Kit.eventually;
import static penstock.compat.Kit.want;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.SchemaType;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.pulsar.core.PulsarAdministration;
import org.springframework.pulsar.core.PulsarTemplate;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Applications of Spring Boot against the brokers at PULSAR_URLS: for each case one is started, tried and closed. */
public final class Spring {
    /** An application starts in seconds, on a busy machine in many; one that takes this long hangs. */
    private static final int CASE_TIMEOUT_S = 120;
    private static final int WAIT_S = 60;

    private final Kit kit;
    private int turn;

    /** What a case has at hand. */
    private record Running(ConfigurableApplicationContext context, String topic, PulsarTemplate<Object> template,
            Seen seen) {
        PulsarAdmin admin() throws Exception {
            return context.getBean(PulsarAdministration.class).createAdminClient();
        }

        TransactionTemplate transactions() {
            return new TransactionTemplate(context.getBean(PlatformTransactionManager.class));
        }

        void sends(String... texts) {
            for (String text : texts) {
                template.send(topic, text);
            }
        }

        /** Check all that a topic holds for those who read only what was committed. */
        void committed(String name, List<String> wanted) throws Exception {
            try (var consumer = context.getBean(PulsarClient.class).newConsumer(Schema.STRING).topic(name)
                    .subscriptionName("check").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscribe()) {
                List<String> found = new ArrayList<>();
                // That nothing else comes can only be waited for.
                for (Message<String> next; (next = consumer.receive(found.size() < wanted.size() ? WAIT_S : 1,
                        TimeUnit.SECONDS)) != null;) {
                    found.add(next.getValue());
                }
                want(found.equals(wanted), "want", wanted, "got", found);
            }
        }
    }

    private interface Body {
        void run(Running at) throws Exception;
    }

    private Spring(Kit kit) {
        this.kit = kit;
    }

    public static void main(String[] arguments) throws Exception {
        Kit kit = new Kit("spring", CASE_TIMEOUT_S, arguments);
        new Spring(kit).all();
        kit.exit();
    }

    private void all() throws Exception {
        templates();
        subscriptions();
        failures();
        schemas();
        administration();
        transactions();
    }

    private void templates() throws Exception {
        test("produce-sync", "a template sends and a record listener receives", Applications.Records.class, at -> {
            at.sends("a", "b", "c");
            at.seen.are(List.of("a", "b", "c"), WAIT_S);
        });
        test("keys-and-properties", "a message customizer's key and properties are headers",
                Applications.Headers.class, at -> {
            at.template.newMessage("text").withTopic(at.topic)
                    .withMessageCustomizer(m -> m.key("k").property("color", "red").eventTime(1234)).send();
            at.seen.are(List.of("text k red 1234"), WAIT_S);
        });
        test("receiving", "a batch listener receives everything, many at a time", Applications.Batches.class, at -> {
            for (int i = 0; i < 200; i++) {
                at.template.sendAsync(at.topic, "m" + i);
            }
            at.seen.are(IntStream.range(0, 200).mapToObj(i -> "m" + i).toList(), WAIT_S);
            want(at.seen.calls() < 200, "no call had more than one message");
        });
        test("reader", "a reader container starts at the earliest message", Applications.Existing.class, at -> {
            at.sends("x", "y");
            try (var application = start(Applications.Readers.class, at.topic, Map.of())) {
                application.getBean(Seen.class).are(List.of("x", "y"), WAIT_S);
            }
        });
        test("pattern", "a listener of a pattern receives from both topics", Applications.Existing.class, at -> {
            at.template.send(at.topic + "-one", "1");
            at.template.send(at.topic + "-two", "2");
            try (var application = start(Applications.Patterns.class, at.topic, Map.of())) {
                application.getBean(Seen.class).areInAnyOrder(Set.of("1", "2"), WAIT_S);
            }
        });
        test("reconnect", "a listener and a template go on after the broker was killed", Applications.Records.class,
                at -> {
            at.sends("before");
            at.seen.are(List.of("before"), WAIT_S);
            Kit.restartBroker();
            at.sends("after");
            at.seen.areInAnyOrder(Set.of("before", "after"), WAIT_S);
        });
    }

    private void subscriptions() throws Exception {
        test("exclusive", "an exclusive listener receives in order", Applications.Exclusive.class, at -> {
            at.sends("a", "b");
            at.seen.are(List.of("a", "b"), WAIT_S);
        });
        test("failover", "of three failover consumers one receives in order", Applications.Failover.class, at -> {
            at.sends("a", "b", "c", "d");
            at.seen.are(List.of("a", "b", "c", "d"), WAIT_S);
            want(at.seen.threads().size() == 1, "received by", at.seen.threads());
        });
        test("shared", "three shared consumers receive each message once", Applications.Shared.class, at -> {
            Set<String> sent = IntStream.range(0, 90).mapToObj(i -> "m" + i).collect(Collectors.toSet());
            sent.forEach(text -> at.sends(text));
            at.seen.areInAnyOrder(sent, WAIT_S);
            want(at.seen.threads().size() > 1, "one consumer received everything");
        });
        test("key-shared", "a key stays with one of three consumers", Applications.KeyShared.class, at -> {
            for (int i = 0; i < 120; i++) {
                String key = "k" + i % 12;
                at.template.newMessage(key).withTopic(at.topic).withMessageCustomizer(m -> m.key(key)).send();
            }
            eventually(120, WAIT_S, () -> at.seen.texts().size());
            at.seen.threadsOfTexts().forEach((key, threads) -> want(threads.size() == 1, key, "went to", threads));
            want(at.seen.threads().size() > 1, "one consumer received everything");
        });
        test("ack-individual", "what is acknowledged by hand is not delivered again, the rest is",
                Applications.Manual.class, at -> {
            at.sends("keep", "drop");
            eventually(Map.of("keep", true, "drop", true), WAIT_S, () -> at.seen.texts().stream().distinct()
                    .collect(Collectors.toMap(text -> text, text -> true)));
            eventually(true, WAIT_S, () -> at.seen.texts().stream().filter("keep"::equals).count() > 1);
            want(at.seen.texts().stream().filter("drop"::equals).count() == 1, at.seen.texts());
        });
    }

    private void failures() throws Exception {
        test("dead-letter", "what a listener always refuses goes to the dead letter topic",
                Applications.DeadLetters.class, at -> {
            at.sends("good", "bad");
            at.seen.areInAnyOrder(Set.of("good", "dead: bad"), WAIT_S);
        });
        test("negative-ack", "an error handler retries and then publishes to the dead letter topic",
                Applications.Retries.class, at -> {
            at.sends("bad");
            eventually(true, WAIT_S, () -> at.seen.texts().contains("dead: bad"));
            want(at.seen.texts().equals(List.of("tried", "tried", "tried", "dead: bad")), at.seen.texts());
        });
    }

    private void schemas() throws Exception {
        for (SchemaType type : List.of(SchemaType.JSON, SchemaType.AVRO)) {
            test(type == SchemaType.JSON ? "schema-json" : "schema-avro", "a record of type " + type + " is an object",
                    Applications.People.class, Map.of("kit.schema", type.name()), at -> {
                Schema<Applications.Person> schema = type == SchemaType.JSON ? Schema.JSON(Applications.Person.class)
                        : Schema.AVRO(Applications.Person.class);
                at.template.send(at.topic, new Applications.Person("Ada", 36), generic(schema));
                at.seen.are(List.of("Ada 36"), WAIT_S);
                try (PulsarAdmin admin = at.admin()) {
                    want(admin.schemas().getSchemaInfo(at.topic).getType() == type, "the topic has another schema");
                }
            });
        }
        test("schema-key-value", "key and value come back as a pair", Applications.Pairs.class, at -> {
            at.template.send(at.topic, new KeyValue<>("one", 1),
                    generic(Schema.KeyValue(Schema.STRING, Schema.INT32)));
            at.seen.are(List.of("one 1"), WAIT_S);
        });
    }

    private void administration() throws Exception {
        test("admin-topics", "topics that are beans are created over HTTP, and get more partitions later",
                Applications.Topics.class, Map.of("kit.partitions", "2"), at -> {
            try (PulsarAdmin admin = at.admin()) {
                want(admin.topics().getPartitionedTopicMetadata(at.topic).partitions == 2, "not two partitions");
                want(admin.topics().getList("public/default").contains(at.topic + "-plain"), "no plain topic");
                try (var again = start(Applications.Topics.class, at.topic, Map.of("kit.partitions", "4"))) {
                    want(admin.topics().getPartitionedTopicMetadata(at.topic).partitions == 4, "not four partitions");
                    want(again.isRunning(), "the second application does not run");
                }
            }
        });
    }

    private void transactions() throws Exception {
        Map<String, String> enabled = Map.of("spring.pulsar.transaction.enabled", "true");
        test("transactions", "messages of a template's own transaction are seen together", Applications.Existing.class,
                enabled, at -> {
            at.template.executeInTransaction(template -> {
                template.send(at.topic, "a");
                return template.send(at.topic, "b");
            });
            at.committed(at.topic, List.of("a", "b"));
        });
        test("transactions", "messages of a transaction that failed are never seen", Applications.Existing.class,
                enabled, at -> {
            at.transactions().executeWithoutResult(status -> at.sends("yes"));
            Kit.refused(IllegalStateException.class, () -> {
                at.transactions().executeWithoutResult(status -> {
                    at.sends("no");
                    throw new IllegalStateException("rolled back");
                });
                return null;
            });
            at.transactions().executeWithoutResult(status -> at.sends("again"));
            at.committed(at.topic, List.of("yes", "again"));
        });
        test("transactions", "a listener's acknowledgement and what it sends are one transaction",
                Applications.Transactional.class, enabled, at -> {
            at.template.executeInTransaction(template -> {
                List.of("a", "fails once", "b").forEach(text -> template.send(at.topic, text));
                return null;
            });
            at.committed(at.topic + "-out", List.of("A", "B", "FAILS ONCE"));
            want(at.seen.texts().size() == 4, at.seen.texts());
            try (PulsarAdmin admin = at.admin()) {
                eventually(0L, WAIT_S, () -> admin.topics().getStats(at.topic).getSubscriptions().get("s")
                        .getMsgBacklog());
            }
        });
    }

    private void test(String feature, String name, Class<?> application, Body body) throws Exception {
        test(feature, name, application, Map.of(), body);
    }

    private void test(String feature, String name, Class<?> application, Map<String, String> properties, Body body)
            throws Exception {
        String topic = "persistent://public/default/spring-" + ProcessHandle.current().pid() + "-" + turn;
        kit.run(feature, name, () -> {
            try (var context = start(application, topic, properties)) {
                @SuppressWarnings("unchecked")
                PulsarTemplate<Object> template = context.getBean(PulsarTemplate.class);
                body.run(new Running(context, topic, template, context.getBean(Seen.class)));
            }
        });
        turn++;
    }

    private ConfigurableApplicationContext start(Class<?> application, String topic, Map<String, String> properties) {
        Map<String, Object> all = new HashMap<>(properties);
        all.put("kit.topic", topic);
        all.put("spring.pulsar.client.service-url", Kit.turnOf("PULSAR_URLS", turn));
        all.put("spring.pulsar.admin.service-url", Kit.turnOf("PULSAR_ADMIN_URLS", turn));
        all.put("spring.main.banner-mode", "off");
        all.put("logging.level.root", "off");
        return new SpringApplicationBuilder(application).properties(all).run();
    }

    @SuppressWarnings("unchecked")
    private static Schema<Object> generic(Schema<?> schema) {
        return (Schema<Object>) schema;
    }
}
