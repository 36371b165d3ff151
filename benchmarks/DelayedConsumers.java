// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Shared subscriptions of one topic, made with the official client, for `benchmarks/delayed_delivery.py`: it starts this
 * with URL, topic and number of subscriptions. What comes back is one byte when all have subscribed; then, for every
 * message, the subscription's index, the time of day in milliseconds, and the twelve bytes that the message begins with.
 * It ends with its standard input.
 */
public final class DelayedConsumers {
    public static void main(String[] arguments) throws Exception {
        int subscriptions = Integer.parseInt(arguments[2]);
        var out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            for (int i = 0; i < subscriptions; i++) {
                int index = i;
                client.newConsumer().topic(arguments[1]).subscriptionName("s" + i)
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .messageListener((consumer, message) -> {
                            long now = System.currentTimeMillis();
                            consumer.acknowledgeAsync(message);
                            try {
                                synchronized (out) {
                                    out.writeByte(index);
                                    out.writeLong(now);
                                    out.write(message.getData(), 0, 12);
                                    out.flush();
                                }
                            } catch (java.io.IOException gone) {
                                throw new java.io.UncheckedIOException(gone);
                            }
                        })
                        .subscribe();
            }
            synchronized (out) {
                out.writeByte(subscriptions);
                out.flush();
            }
            while (System.in.read() >= 0) {
                // Nothing is said to us; the end of it is what we wait for.
            }
        }
    }
}
