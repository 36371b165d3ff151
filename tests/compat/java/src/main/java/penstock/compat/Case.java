// SPDX-License-Identifier: Apache-2.0
package penstock.compat;

import static penstock.compat.Kit.want;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/** What a case has at hand: a client and an administrator of its own, and a topic that nobody else uses. */
final class Case implements AutoCloseable {
    private static final AtomicInteger TOPICS = new AtomicInteger();
    static final String PERSON = "{\"type\":\"record\",\"name\":\"Person\",\"fields\":["
            + "{\"name\":\"name\",\"type\":[\"null\",\"string\"],\"default\":null},{\"name\":\"age\",\"type\":\"int\"}]}";

    private final int turn = TOPICS.getAndIncrement();
    final String name = "java-" + ProcessHandle.current().pid() + "-" + turn;
    final String topic = "persistent://public/default/" + name;
    final String url = Kit.turnOf("PULSAR_URLS", turn);
    final String adminUrl = Kit.turnOf("PULSAR_ADMIN_URLS", turn);
    final PulsarClient client;
    final PulsarAdmin admin;

    /** One case. */
    interface Body {
        void run(Case at) throws Exception;
    }

    Case() throws Exception {
        client = PulsarClient.builder().serviceUrl(url).operationTimeout(20, TimeUnit.SECONDS)
                .build();
        admin = PulsarAdmin.builder().serviceHttpUrl(adminUrl).build();
    }

    @Override
    public void close() throws Exception {
        client.close();
        admin.close();
    }

    ProducerBuilder<String> producer() {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(false);
    }

    ConsumerBuilder<String> consumer() {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS);
    }

    static List<MessageId> send(Producer<String> producer, String... texts) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        for (String text : texts) {
            ids.add(producer.send(text));
        }
        return ids;
    }

    static <T> Message<T> receive(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(15, TimeUnit.SECONDS);
        want(message != null, "no message came");
        return message;
    }

    static List<String> receive(Consumer<String> consumer, int count) throws Exception {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message<String> message = receive(consumer);
            texts.add(message.getValue());
            consumer.acknowledge(message);
        }
        return texts;
    }

    /** No message comes; absence can only be waited for. */
    static void nothing(Consumer<?> consumer, int millis) throws Exception {
        Message<?> message = consumer.receive(millis, TimeUnit.MILLISECONDS);
        want(message == null, "a message came that should not:", message);
    }

    static String[] numbered(int count) {
        String[] texts = new String[count];
        for (int i = 0; i < count; i++) {
            texts[i] = "m-%04d".formatted(i);
        }
        return texts;
    }
}
