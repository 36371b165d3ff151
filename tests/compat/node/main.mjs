// SPDX-License-Identifier: Apache-2.0
//
// pulsar-flex, case by case, against the brokers at PULSAR_URLS; see ../run.py for the contract. It is a client of its own,
// in plain JavaScript: it speaks an older version of the protocol, sends CONNECT again after LOOKUP, and waits for the
// answer to every acknowledgement.

import { appendFileSync } from 'node:fs';
import { strict as assert } from 'node:assert';
import flex from 'pulsar-flex';

const { Consumer, Producer, logLevel } = flex;
const CASE_TIMEOUT_MS = 40_000;
const urls = process.env.PULSAR_URLS.split(',');
const adminUrls = process.env.PULSAR_ADMIN_URLS.split(',');
const quiet = { logLevel: logLevel.NONE ?? 0, logCreator: () => () => {} };
let topics = 0;
let turn = 0; // which of the pairs of addresses the running case uses

/** What a case has at hand: a topic that nobody else uses, and what it opened, to be closed. */
class Case {
  topic = `persistent://public/default/node-${process.pid}-${++topics}`;
  opened = [];

  async producer(options = {}) {
    const producer = new Producer({
      topic: this.topic, discoveryServers: [new URL(urls[turn % urls.length]).host], producerAccessMode: Producer.ACCESS_MODES.SHARED, ...quiet, ...options,
    });
    await producer.create();
    this.opened.push(() => producer.close());
    return producer;
  }

  /** A consumer that puts what comes into `got`, and acknowledges it unless told otherwise. */
  async consumer({ acknowledge = (message) => message.ack(), ...options } = {}) {
    const consumer = new Consumer({
      topic: this.topic, subscription: 's', discoveryServers: [new URL(urls[turn % urls.length]).host], subType: Consumer.SUB_TYPES.EXCLUSIVE,
      consumerName: `c-${this.opened.length}`, ...quiet, ...options,
    });
    await consumer.subscribe();
    const got = [];
    consumer.got = got;
    await consumer.run({
      autoAck: false,
      onMessage: async (message) => {
        got.push({ text: message.message.toString(), count: message.redeliveryCount });
        await acknowledge(message);
      },
    });
    this.opened.push(() => consumer.unsubscribe());
    return consumer;
  }

  async close() {
    for (const close of this.opened.reverse()) await close().catch(() => {});
  }
}

/** Wait until a condition holds; the limit of the case ends it. */
async function until(condition) {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20));
}

const texts = (consumer) => consumer.got.map((message) => message.text);
const send = async (producer, ...payloads) => {
  for (const payload of payloads) await producer.sendMessage({ payload, properties: {} });
};
const numbered = (count) => Array.from({ length: count }, (_, i) => `m-${String(i).padStart(3, '0')}`);

async function admin(method, path, body) {
  const reply = await fetch(`${adminUrls[turn % adminUrls.length]}/admin/v2/${path}`, {
    method, body: body === undefined ? undefined : JSON.stringify(body), headers: { 'Content-Type': 'application/json' },
  });
  const text = await reply.text();
  assert.ok(reply.ok, `${method} ${path}: ${reply.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

const cases = {
  'produce-sync: what is sent is received in order': async (t) => {
    const consumer = await t.consumer();
    await send(await t.producer(), ...numbered(50));
    await until(() => consumer.got.length === 50);
    assert.deepEqual(texts(consumer), numbered(50));
  },
  'batching: a batch comes apart in order': async (t) => {
    const consumer = await t.consumer();
    const producer = await t.producer();
    await producer.sendBatch({ messages: numbered(20).map((payload) => ({ payload, properties: { of: 'batch' } })) });
    await until(() => consumer.got.length === 20);
    assert.deepEqual(texts(consumer), numbered(20));
  },
  'exclusive: a second exclusive consumer is refused': async (t) => {
    await t.consumer();
    await assert.rejects(t.consumer());
  },
  'failover: the other consumer takes over': async (t) => {
    const consumers = [await t.consumer({ subType: Consumer.SUB_TYPES.FAILOVER }), await t.consumer({ subType: Consumer.SUB_TYPES.FAILOVER })];
    const producer = await t.producer();
    await send(producer, 'one');
    await until(() => consumers.some((consumer) => consumer.got.length === 1));
    const active = consumers.find((consumer) => consumer.got.length === 1);
    const standby = consumers.find((consumer) => consumer !== active);
    await active.unsubscribe();
    await send(producer, 'two');
    await until(() => texts(standby).includes('two'));
  },
  'ack-receipt: every acknowledgement is answered': async (t) => {
    let answered = 0;
    await t.consumer({ acknowledge: async (message) => { await message.ack(); answered += 1; } });
    await send(await t.producer(), ...numbered(10));
    await until(() => answered === 10);
  },
  'ack-individual: what is not acknowledged comes again to the next consumer': async (t) => {
    const keep = (message) => (message.message.toString() === 'b' ? message.ack() : undefined);
    const consumer = await t.consumer({ subType: Consumer.SUB_TYPES.SHARED, acknowledge: keep });
    await send(await t.producer(), 'a', 'b', 'c');
    await until(() => consumer.got.length === 3);
    await consumer.unsubscribe();
    const again = await t.consumer({ subType: Consumer.SUB_TYPES.SHARED });
    await until(() => again.got.length === 2);
    assert.deepEqual(texts(again).sort(), ['a', 'c']);
  },
  'ack-cumulative: one acknowledgement covers all before it': async (t) => {
    const type = Consumer.ACK_TYPES.CUMULATIVE;
    const upToB = (message) => (message.message.toString() === 'b' ? message.ack({ type }) : undefined);
    const consumer = await t.consumer({ acknowledge: upToB });
    await send(await t.producer(), 'a', 'b', 'c');
    await until(() => consumer.got.length === 3);
    await consumer.unsubscribe();
    const again = await t.consumer();
    await until(() => again.got.length === 1);
    assert.deepEqual(texts(again), ['c']);
  },
  'negative-ack: it comes again, counted': async (t) => {
    const type = Consumer.ACK_TYPES.NEGATIVE;
    const later = (message) => (message.redeliveryCount < 2 ? message.ack({ type }) : message.ack());
    const consumer = await t.consumer({ subType: Consumer.SUB_TYPES.SHARED, acknowledge: later });
    await send(await t.producer(), 'a');
    await until(() => consumer.got.some((message) => message.count === 2));
    assert.deepEqual(consumer.got.map((message) => message.count), [0, 1, 2]);
  },
  'reconnect: producer and consumer go on after the topic was unloaded': async (t) => {
    const consumer = await t.consumer({ reconnectInterval: 200 });
    const producer = await t.producer();
    await send(producer, 'a');
    await until(() => consumer.got.length === 1);
    await admin('PUT', `${t.topic.replace('://', '/')}/unload`);
    await send(producer, 'b');
    await until(() => texts(consumer).includes('b'));
  },
};

async function run(body) {
  const t = new Case();
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`did not end within ${CASE_TIMEOUT_MS / 1000} s`)), CASE_TIMEOUT_MS);
  });
  try {
    await Promise.race([body(t), limit]);
    return '';
  } catch (error) {
    return String(error.message || error.name || error);
  } finally {
    clearTimeout(timer);
    await Promise.race([t.close(), new Promise((resolve) => setTimeout(resolve, 2_000))]);
  }
}

let failed = 0;
process.on('unhandledRejection', () => {}); // the client leaves some behind when a connection is refused
for (const [title, body] of Object.entries(cases)) {
  turn += 1;
  const [feature, name] = title.split(': ');
  if (process.argv[2] && process.argv[2] !== feature) continue;
  const why = await run(body);
  const outcome = why ? 'failed' : 'passed';
  failed += why ? 1 : 0;
  console.log(outcome.padEnd(7), feature.padEnd(24), name, why);
  appendFileSync(process.env.COMPAT_RESULTS, `${JSON.stringify({ client: 'node', feature, case: name, outcome, why })}\n`);
}
process.exit(failed ? 1 : 0);
