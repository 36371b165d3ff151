// SPDX-License-Identifier: Apache-2.0
// A producer and a consumer of the official Java client, for tests.soak.migration: the same as its Load.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

public class MovingClient {
    static final Set<Long> stored = ConcurrentHashMap.newKeySet();
    static final Map<Long, Integer> got = new ConcurrentHashMap<>();
    static final AtomicLong[] last = {new AtomicLong(System.nanoTime()), new AtomicLong(System.nanoTime())};
    static final AtomicLong[] longest = {new AtomicLong(), new AtomicLong()};
    static volatile boolean enough;

    static void seen(int who) {
        long now = System.nanoTime();
        long pause = now - last[who].getAndSet(now);
        longest[who].accumulateAndGet(pause, Math::max);
    }

    public static void main(String[] words) throws Exception {
        int rate = Integer.parseInt(words[3]);
        PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).build();
        Consumer<Long> consumer = client.newConsumer(Schema.INT64).topic(words[1]).subscriptionName("s")
                .subscriptionType(SubscriptionType.valueOf(words[2]))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Producer<Long> producer = client.newProducer(Schema.INT64).topic(words[1]).blockIfQueueFull(true)
                .sendTimeout(0, TimeUnit.SECONDS).create();
        Thread publishing = new Thread(() -> {
            for (long number = 0; !enough; number++) {
                long sent = number;
                producer.newMessage().key("" + number % 31).value(number).sendAsync().thenRun(() -> {
                    stored.add(sent);
                    seen(0);
                });
                try {
                    Thread.sleep(1000 / rate);
                } catch (InterruptedException end) {
                    return;
                }
            }
        });
        Thread consuming = new Thread(() -> {
            try {
                while (true) {
                    Message<Long> message = consumer.receive();
                    seen(1);
                    got.merge(message.getValue(), 1, Integer::sum);
                    consumer.acknowledgeAsync(message);
                }
            } catch (Exception end) {
                return;
            }
        });
        publishing.start();
        consuming.start();
        System.out.println("> ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null && !order.equals("end"); order = orders.readLine()) {
            longest[0].set(0);
            longest[1].set(0);
            System.out.println("> done");
        }
        enough = true;
        publishing.join();
        producer.flush();
        for (int turn = 0; turn < 600 && !got.keySet().containsAll(stored); turn++) {
            Thread.sleep(100);
        }
        Thread.sleep(3000);
        long lost = stored.stream().filter(number -> !got.containsKey(number)).count();
        long twice = got.values().stream().mapToLong(count -> count - 1).sum();
        System.out.printf("> %d sent, %d lost, %d twice; longest pause: producer %.2f s, consumer %.2f s%n",
                stored.size(), lost, twice, longest[0].get() / 1e9, longest[1].get() / 1e9);
        System.exit(0);
    }
}
