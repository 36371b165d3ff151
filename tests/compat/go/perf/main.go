// SPDX-License-Identifier: Apache-2.0

// The official Go client at full speed, with batches: `perf produce|consume URL TOPIC MESSAGES BYTES` prints one line of
// JSON. benchmarks/official_clients.py starts it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	mode, url, topic := os.Args[1], os.Args[2], os.Args[3]
	messages, size := must(strconv.Atoi(os.Args[4])), must(strconv.Atoi(os.Args[5]))
	quiet := logrus.New()
	quiet.SetLevel(logrus.ErrorLevel)
	client := must(pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.NewLoggerWithLogrus(quiet)}))
	defer client.Close()
	var began time.Time
	if mode == "produce" {
		producer := must(client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, MaxPendingMessages: 10_000, BatchingMaxPublishDelay: time.Millisecond, DisableBlockIfQueueFull: false,
		}))
		payload := make([]byte, size)
		var failed atomic.Int64
		began = time.Now()
		for range messages {
			producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload},
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					if err != nil {
						failed.Add(1)
					}
				})
		}
		must(0, producer.Flush())
		if failed.Load() > 0 {
			must(0, fmt.Errorf("%d messages failed", failed.Load()))
		}
	} else {
		consumer := must(client.Subscribe(pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: "go", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			ReceiverQueueSize: 10_000,
		}))
		began = time.Now()
		for range messages {
			must(0, consumer.Ack(must(consumer.Receive(context.Background()))))
		}
	}
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]float64{"seconds": time.Since(began).Seconds()}))
}
