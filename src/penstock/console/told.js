// SPDX-License-Identifier: Apache-2.0
// Why messages of a topic wait, as far as the statistics of Pulsar's REST API tell it, in the form of `/admin/v3/why`.
//
// For brokers behind a proxy, which explains its own holds only, and for Apache Pulsar, which explains none. What
// depends on two moments (a counter that grows, a client that takes nothing) is told once there are two looks.

const SIDES = { Subscription: "subscription", Topic: "topic", Broker: "broker" };
const slows = { effect: "slows", forMs: null };

/** Findings about one subscription. `before`: its statistics in the look before; undefined: there was none. */
function ofSubscription(name, now, before) {
  const what = `subscription ${name}`;
  const consumers = now.consumers ?? [];
  const ready = Math.max(0, now.msgBacklog - (now.msgDelayed ?? 0));
  const found = [];
  if (now.blockedSubscriptionOnUnackedMsgs) {
    found.push({ ...slows, what, reason: "unacked-messages", limit: "unacknowledged messages", numbers: { unacked: now.unackedMessages },
      liftedBy: "half of these messages are acknowledged, or maxUnackedMessagesPerSubscription is raised" });
  } else if (ready > 0 && consumers.length === 0) {
    found.push({ ...slows, what, reason: "no-consumer", limit: "it has no consumer", numbers: { waiting_entries: ready },
      liftedBy: "a consumer subscribes, or the subscription is deleted" });
  }
  const limited = Object.entries(SIDES).filter(([side]) => ["Msg", "Bytes"].some((kind) => {
    const counter = `dispatchThrottled${kind}EventsBy${side}Limit`;
    return before !== undefined && (now[counter] ?? 0) > (before[counter] ?? 0);
  }));
  for (const [, side] of limited) {
    found.push({ ...slows, what, reason: "dispatch-rate", limit: `dispatch rate of the ${side}`, numbers: { waiting_entries: ready },
      liftedBy: "its turn comes, or the dispatch rate is raised" });
  }
  const earlier = new Map((before?.consumers ?? []).map((one) => [one.consumerName, one]));
  for (const consumer of ready > 0 ? consumers : []) {
    const who = `consumer ${consumer.consumerName} at ${consumer.address?.replace(/^\//, "") ?? "an unknown address"} of ${what}`;
    const then = earlier.get(consumer.consumerName);
    if (consumer.blockedConsumerOnUnackedMsgs) {
      found.push({ ...slows, what: who, reason: "unacked-messages", limit: "unacknowledged messages of this consumer",
        numbers: { unacked: consumer.unackedMessages, waiting_entries: ready },
        liftedBy: "half of these messages are acknowledged, or maxUnackedMessagesPerConsumer is raised" });
    } else if (then && consumer.availablePermits <= 0 && then.availablePermits <= 0 && consumer.msgOutCounter === then.msgOutCounter) {
      found.push({ ...slows, what: who, reason: "queue-full", limit: "its client has as many messages as it has asked for",
        numbers: { unacked: consumer.unackedMessages, waiting_entries: ready },
        liftedBy: "the client takes messages from its queue: it sends FLOW" });
    }
  }
  if ((now.msgDelayed ?? 0) > 0) {
    found.push({ effect: "waits", forMs: null, what, reason: "delayed", limit: "delivery times of delayed messages",
      numbers: { delayed_entries: now.msgDelayed }, liftedBy: "these times have come" });
  }
  return found;
}

/** Findings about those who publish. */
function ofProducers(now, before) {
  const found = [];
  if (now.waitingPublishers > 0) {
    found.push({ effect: "waits", forMs: null, what: `${now.waitingPublishers} producers`, reason: "exclusive-access",
      limit: "the topic is for one producer at a time", numbers: {}, liftedBy: "producers before them are closed" });
  }
  if (before !== undefined && (now.publishRateLimitedTimes ?? 0) > (before.publishRateLimitedTimes ?? 0)) {
    found.push({ ...slows, what: "producers of the topic", reason: "publish-rate", limit: "publish rate of the topic or the broker",
      numbers: {}, liftedBy: "their turn comes, or the publish rate is raised" });
  }
  const quota = { effect: "would-refuse", forMs: null, what: "the backlog of the topic", reason: "would-refuse-producers",
    liftedBy: "its consumers acknowledge messages, or the backlog is cleared, or the quota is raised" };
  if (now.backlogQuotaLimitSize > 0 && now.backlogSize >= now.backlogQuotaLimitSize) {
    found.push({ ...quota, limit: "backlog quota in bytes, whose policy is applied now",
      numbers: { backlog_bytes: now.backlogSize, limit_bytes: now.backlogQuotaLimitSize } });
  }
  if (now.backlogQuotaLimitTime > 0 && now.oldestBacklogMessageAgeSeconds >= now.backlogQuotaLimitTime) {
    found.push({ ...quota, limit: "backlog quota in time, whose policy is applied now",
      numbers: { oldest_s: now.oldestBacklogMessageAgeSeconds, limit_s: now.backlogQuotaLimitTime } });
  }
  return found;
}

function ofReplication(cluster, now) {
  const waits = now.replicationBacklog > 0 && (!now.connected || now.replicationDelayInSeconds > 0);
  return waits ? [{ effect: "slows", forMs: 1_000 * (now.replicationDelayInSeconds || 0) || null, what: `replication to ${cluster}`,
    reason: "replication", limit: `it cannot be sent to cluster ${cluster}`, numbers: { waiting_entries: now.replicationBacklog },
    liftedBy: "that cluster takes it" }] : [];
}

/** The explanation of a topic by its statistics. `before`: those of the look before, if there was one. */
export function told(name, stats, before) {
  const subscriptions = Object.entries(stats.subscriptions ?? {});
  const findings = [
    ...ofProducers(stats, before),
    ...Object.entries(stats.replication ?? {}).flatMap(([cluster, one]) => ofReplication(cluster, one)),
    ...subscriptions.flatMap(([of, one]) => ofSubscription(of, one, before?.subscriptions?.[of])),
  ];
  return {
    of: name,
    producers: stats.publishers?.length ?? 0,
    subscriptions: subscriptions.length,
    slowed: findings.some((one) => one.effect === "slows"),
    findings,
    more: false,
  };
}

/** What a proxy holds, and what the statistics of the broker tell, in one. Either may be null. */
export function merged(own, theirs) {
  if (own === null || theirs === null) return own ?? theirs;
  return { ...theirs, slowed: own.slowed || theirs.slowed, findings: [...own.findings, ...theirs.findings], more: own.more };
}
