// SPDX-License-Identifier: Apache-2.0

// The official Go client, case by case, against the brokers at PULSAR_URLS; see ../run.py for the contract.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

// A case takes a second or a few; one that takes this long hangs.
const caseTimeout = 40 * time.Second

type result struct {
	Client  string `json:"client"`
	Feature string `json:"feature"`
	Case    string `json:"case"`
	Outcome string `json:"outcome"`
	Why     string `json:"why,omitempty"`
}

type failure struct{ text string }

// c is what a case has at hand: a client of its own, and a topic that nobody else uses.
type c struct {
	pulsar.Client
	topic string
}

type testCase struct {
	feature, name string
	run           func(*c)
}

var topics atomic.Int64

// Which of the pairs of addresses the running case uses.
var turn int

func turnOf(variable string) string {
	addresses := strings.Split(os.Getenv(variable), ",")
	return addresses[turn%len(addresses)]
}

func serviceURL() string { return turnOf("PULSAR_URLS") }

func adminURL() string { return turnOf("PULSAR_ADMIN_URLS") }

// must fails the case with what was wanted and the error that came instead.
func must[T any](value T, err error) T {
	if err != nil {
		panic(failure{err.Error()})
	}
	return value
}

func ok(err error) {
	if err != nil {
		panic(failure{err.Error()})
	}
}

func want(condition bool, format string, arguments ...any) {
	if !condition {
		panic(failure{fmt.Sprintf(format, arguments...)})
	}
}

func newTopic() string {
	return fmt.Sprintf("persistent://public/default/go-%d-%d", os.Getpid(), topics.Add(1))
}

func newClient(url string) pulsar.Client {
	logger := logrus.New()
	logger.SetLevel(logrus.PanicLevel)
	return must(pulsar.NewClient(pulsar.ClientOptions{
		URL: url, Logger: log.NewLoggerWithLogrus(logger), OperationTimeout: 20 * time.Second,
	}))
}

func (t *c) producer(options pulsar.ProducerOptions) pulsar.Producer {
	if options.Topic == "" {
		options.Topic = t.topic
	}
	return must(t.CreateProducer(options))
}

func (t *c) consumer(options pulsar.ConsumerOptions) pulsar.Consumer {
	if options.Topic == "" && options.Topics == nil && options.TopicsPattern == "" {
		options.Topic = t.topic
	}
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	return must(t.Subscribe(options))
}

func send(producer pulsar.Producer, texts ...string) []pulsar.MessageID {
	var ids []pulsar.MessageID
	for _, text := range texts {
		ids = append(ids, must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(text)})))
	}
	return ids
}

type receiver interface {
	Receive(context.Context) (pulsar.Message, error)
}

func receive(from receiver) pulsar.Message {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	return must(from.Receive(ctx))
}

func receiveTexts(from pulsar.Consumer, count int) []string {
	var texts []string
	for range count {
		message := receive(from)
		texts = append(texts, string(message.Payload()))
		ok(from.Ack(message))
	}
	return texts
}

// nothing says that no message comes; absence can only be waited for.
func nothing(from receiver, wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	message, err := from.Receive(ctx)
	if err == nil {
		panic(failure{fmt.Sprintf("a message came that should not: %q", message.Payload())})
	}
}

func runCase(test testCase) (outcome, why string) {
	done := make(chan failure, 1)
	go func() {
		defer func() {
			switch caught := recover().(type) {
			case nil:
				done <- failure{}
			case failure:
				done <- caught
			default:
				done <- failure{fmt.Sprint(caught)}
			}
		}()
		client := newClient(serviceURL())
		defer client.Close()
		test.run(&c{client, newTopic()})
	}()
	select {
	case failed := <-done:
		if failed.text == "" {
			return "passed", ""
		}
		return "failed", failed.text
	case <-time.After(caseTimeout):
		return "failed", fmt.Sprintf("did not end within %s", caseTimeout)
	}
}

func main() {
	results := must(os.OpenFile(os.Getenv("COMPAT_RESULTS"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644))
	defer results.Close()
	failed := 0
	for number, test := range cases {
		turn = number
		if len(os.Args) > 1 && os.Args[1] != test.feature {
			continue
		}
		outcome, why := runCase(test)
		line := must(json.Marshal(result{"go", test.feature, test.name, outcome, why}))
		must(results.Write(append(line, '\n')))
		fmt.Printf("%-7s %-24s %s %s\n", outcome, test.feature, test.name, why)
		if outcome == "failed" {
			failed++
		}
	}
	if failed > 0 {
		os.Exit(1)
	}
}
