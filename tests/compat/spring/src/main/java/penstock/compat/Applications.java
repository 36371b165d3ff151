// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.RedeliveryBackoff;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MultiplierRedeliveryBackoff;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.SchemaType;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.pulsar.annotation.PulsarListener;
import org.springframework.pulsar.annotation.PulsarReader;
import org.springframework.pulsar.core.PulsarTemplate;
import org.springframework.pulsar.core.PulsarTopic;
import org.springframework.pulsar.core.PulsarTopicBuilder;
import org.springframework.pulsar.listener.AckMode;
import org.springframework.pulsar.listener.Acknowledgement;
import org.springframework.pulsar.listener.DefaultPulsarConsumerErrorHandler;
import org.springframework.pulsar.listener.PulsarConsumerErrorHandler;
import org.springframework.pulsar.listener.PulsarDeadLetterPublishingRecoverer;
import org.springframework.pulsar.support.PulsarHeaders;
import org.springframework.util.backoff.FixedBackOff;

/** The applications of the cases, each a class of beans and listeners as somebody would write them. */
final class Applications {
    private Applications() {
    }

    /** An application without listeners. */
    @EnableAutoConfiguration
    static class Existing {
        @Bean
        Seen seen() {
            return new Seen();
        }
    }

    @Import(Existing.class)
    record Records(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s")
        void on(String text) {
            seen.add(text);
        }
    }

    @Import(Existing.class)
    record Headers(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s")
        void on(String text, @Header(PulsarHeaders.KEY) String key, @Header("color") String color,
                @Header(PulsarHeaders.EVENT_TIME) long time) {
            seen.add(text + " " + key + " " + color + " " + time);
        }
    }

    @Import(Existing.class)
    record Batches(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", batch = true, ackMode = AckMode.BATCH)
        void on(List<String> texts) {
            seen.add(texts.toArray(new String[0]));
        }
    }

    @Import(Existing.class)
    record Readers(Seen seen) {
        @PulsarReader(topics = "${kit.topic}", startMessageId = "earliest")
        void on(String text) {
            seen.add(text);
        }
    }

    @Import(Existing.class)
    record Patterns(Seen seen) {
        @PulsarListener(topicPattern = "${kit.topic}-.*", subscriptionName = "s",
                properties = "subscriptionInitialPosition=Earliest")
        void on(String text) {
            seen.add(text);
        }
    }

    @Import(Existing.class)
    record Exclusive(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", subscriptionType = SubscriptionType.Exclusive)
        void on(String text) {
            seen.add(text);
        }
    }

    @Import(Existing.class)
    record Failover(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", concurrency = "3",
                subscriptionType = SubscriptionType.Failover)
        void on(String text) {
            seen.add(text);
        }
    }

    @Import(Existing.class)
    record Shared(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", concurrency = "3",
                subscriptionType = SubscriptionType.Shared, properties = "receiverQueueSize=5")
        void on(String text) {
            seen.add(text);
        }
    }

    @Import(Existing.class)
    record KeyShared(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", concurrency = "3",
                subscriptionType = SubscriptionType.Key_Shared)
        void on(String text) {
            seen.add(text);
        }
    }

    @Import({Existing.class, Soon.class})
    record Manual(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", ackMode = AckMode.MANUAL,
                subscriptionType = SubscriptionType.Shared, negativeAckRedeliveryBackoff = "soon")
        void on(String text, Acknowledgement acknowledgement) {
            seen.add(text);
            if (text.equals("drop")) {
                acknowledgement.acknowledge();
            } else {
                acknowledgement.nack();
            }
        }
    }

    /** Redelivery after a tenth of a second instead of a minute. */
    static class Soon {
        @Bean
        RedeliveryBackoff soon() {
            return MultiplierRedeliveryBackoff.builder().minDelayMs(100).maxDelayMs(100).multiplier(2).build();
        }
    }

    @Import({Existing.class, Soon.class})
    static class DeadLetters {
        private final Seen seen;

        DeadLetters(Seen seen) {
            this.seen = seen;
        }

        @Bean
        static DeadLetterPolicy twice(@Value("${kit.topic}") String topic) {
            return DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(topic + "-dead").build();
        }

        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", subscriptionType = SubscriptionType.Shared,
                negativeAckRedeliveryBackoff = "soon", deadLetterPolicy = "twice")
        void on(String text) {
            if (text.equals("bad")) {
                throw new IllegalArgumentException(text);
            }
            seen.add(text);
        }

        @PulsarListener(topics = "${kit.topic}-dead", subscriptionName = "dead", schemaType = SchemaType.STRING)
        void onDead(String text) {
            seen.add("dead: " + text);
        }
    }

    @Import(Existing.class)
    static class Retries {
        private final Seen seen;

        Retries(Seen seen) {
            this.seen = seen;
        }

        @Bean
        static PulsarConsumerErrorHandler<String> thrice(PulsarTemplate<String> template,
                @Value("${kit.topic}") String topic) {
            return new DefaultPulsarConsumerErrorHandler<>(
                    new PulsarDeadLetterPublishingRecoverer<>(template, (consumer, message) -> topic + "-dead"),
                    new FixedBackOff(Duration.ofMillis(100).toMillis(), 2));
        }

        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", subscriptionType = SubscriptionType.Shared,
                pulsarConsumerErrorHandler = "thrice")
        void on(String text) {
            seen.add("tried");
            throw new IllegalArgumentException(text);
        }

        @PulsarListener(topics = "${kit.topic}-dead", subscriptionName = "dead")
        void onDead(String text) {
            seen.add("dead: " + text);
        }
    }

    /** What is written as JSON and Avro. */
    static final class Person {
        public String name;
        public int age;

        Person() {
        }

        Person(String name, int age) {
            this.name = name;
            this.age = age;
        }
    }

    /** Its listener's type of schema is a property, which an annotation can't take: one listener for each. */
    @Import(Existing.class)
    static class People {
        private final Seen seen;

        People(Seen seen) {
            this.seen = seen;
        }

        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", schemaType = SchemaType.JSON,
                autoStartup = "#{'${kit.schema}' == 'JSON'}")
        void onJson(Person person) {
            seen.add(person.name + " " + person.age);
        }

        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", schemaType = SchemaType.AVRO,
                autoStartup = "#{'${kit.schema}' == 'AVRO'}")
        void onAvro(Person person) {
            seen.add(person.name + " " + person.age);
        }
    }

    @Import(Existing.class)
    record Pairs(Seen seen) {
        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", schemaType = SchemaType.KEY_VALUE)
        void on(KeyValue<String, Integer> pair) {
            seen.add(pair.getKey() + " " + pair.getValue());
        }
    }

    @Import(Existing.class)
    static class Topics {
        @Bean
        PulsarTopic partitioned(PulsarTopicBuilder builder, @Value("${kit.topic}") String topic,
                @Value("${kit.partitions}") int partitions) {
            return builder.name(topic).numberOfPartitions(partitions).build();
        }

        @Bean
        PulsarTopic plain(PulsarTopicBuilder builder, @Value("${kit.topic}") String topic) {
            return builder.name(topic + "-plain").build();
        }
    }

    @Import({Existing.class, Soon.class})
    static class Transactional {
        private final Seen seen;
        private final PulsarTemplate<String> template;
        private final String out;
        private final AtomicBoolean failed = new AtomicBoolean();

        Transactional(Seen seen, PulsarTemplate<String> template, @Value("${kit.topic}-out") String out) {
            this.seen = seen;
            this.template = template;
            this.out = out;
        }

        @PulsarListener(topics = "${kit.topic}", subscriptionName = "s", subscriptionType = SubscriptionType.Shared,
                transactional = "true", ackMode = AckMode.RECORD, negativeAckRedeliveryBackoff = "soon")
        void on(String text) {
            seen.add(text);
            template.send(out, text.toUpperCase());
            if (text.equals("fails once") && failed.compareAndSet(false, true)) {
                throw new IllegalStateException(text);
            }
        }
    }
}
