# SPDX-License-Identifier: Apache-2.0
"""Pulsar's settings that penstock ignores.

Why: Pulsar's `broker.conf` sets hundreds of keys. Known ones that penstock ignores are reported in one warning; unknown
ones are probably typing errors, and are reported separately. Where: `sources` checks every key that has no row. The
list has names of Pulsar 2.x to 5.0, those of the bookie in `standalone.conf`, those of `proxy.conf`, and those of
protocol handlers.
"""

from __future__ import annotations

from typing import Final

# Prefixes of families of keys. No security setting of penstock begins so: a misspelt one would be taken for Pulsar's.
_FAMILIES: Final = (
    "additionalServlet",
    "amqp",
    "athenz",
    "bookkeeper",
    "brokerClient_",
    "brokerEntry",
    "brokerInterceptor",
    "dbStorage_",
    "expose",
    "fileSystem",
    "functionsWorker",
    "gcsManagedLedgerOffload",
    "journal",
    "kafka",
    "keySharedLookAhead",
    "kop",
    "loadBalancer",
    "managedCursor",
    "managedLedger",
    "metadataStore",
    "metadataSync",
    "metrics",
    "mop",
    "mqtt",
    "openid",
    "packages",
    "pulsarChannel",
    "replicat",
    "s3ManagedLedgerOffload",
    "sasl",
    "scalable",
    "schemaRegistry",
    "subscriptionBacklogScan",
    "topicPublisherThrottling",
    "transaction",
    "webSocket",
    "webhook",
    "zk",
    "zooKeeper",
    "zookeeper",
)

_NAMES: Final = frozenset(
    """
    activeConsumerFailoverConsistentHashing additionalSystemCursorNames aggregatePublisherStatsByProducerName
    allowAclChangesOnNonExistentTopics allowedTopicPropertyKeysForMetrics allowLoopback allowOverrideEntryFilters
    authenticationRoleLoggingAnonymizer autoShrinkForConsumerPendingAcksMap
    bindAddresses bookieId bookiePort bootstrapNamespaces
    brokerClientJsseProvider brokerClientSslFactoryPlugin brokerClientSslFactoryPluginParams brokerClientSslProvider
    brokerClientTlsCiphers brokerClientTlsEnabled brokerClientTlsEnabledWithKeyStore brokerClientTlsFactoryClassName
    brokerClientTlsFactoryConfig brokerClientTlsKeyStore brokerClientTlsKeyStorePassword brokerClientTlsKeyStoreType
    brokerClientTlsProtocols brokerClientTlsTrustStore brokerClientTlsTrustStorePassword brokerClientTlsTrustStoreType
    brokerProxyReadTimeoutMs checkActiveBrokers enableProxyStatsEndpoints functionWorkerWebServiceURL
    functionWorkerWebServiceURLTLS httpNumThreads httpOutputBufferSize httpReverseProxyConfigs
    maxConcurrentInboundConnections maxConcurrentInboundConnectionsPerIp maxConcurrentLookupRequests
    proxyAdditionalServlets proxyAdditionalServletDirectory proxyExtensions proxyExtensionsDirectory proxyLogLevel
    proxyZeroCopyModeEnabled
    brokerCloseInactiveTopicsEnabled brokerPublisherThrottlingTickTimeMillis
    brokerReplicationInactiveThresholdSeconds brokerServiceCompactionPhaseOneLoopTimeInSeconds
    brokerServicePurgeInactiveFrequencyInSeconds cacheEvictionByExpectedReadCount
    cacheEvictionByMarkDeletedPosition clientLibraryVersionCheckAllowUnversioned clientLibraryVersionCheckEnabled
    clusterMigrationAutoResourceCreation clusterMigrationCheckDurationSeconds compactionServiceFactoryClassName
    configurationMetadataStoreUrl
    configurationMetadataSyncEventTopic configurationStoreConfigPath configurationStoreServers
    createTopicToRemoteClusterForReplication defaultNamespaceBundleSplitAlgorithm
    defaultNumberOfSystemNamespaceBundles
    delayedDeliveryMaxIndexesPerBucketSnapshotSegment delayedDeliveryMaxNumBuckets
    delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds delayedDeliveryMinIndexCountPerBucket
    disableBrokerInterceptors disableHttpDebugMethods diskUsageThreshold
    diskUsageWarnThreshold dispatcherDispatchMessagesInSubscriptionThread
    dispatcherEntryFilterRescheduledMessageDelay dispatcherMaxReadBatchSize dispatcherMaxReadSizeBytes
    dispatcherMinReadBatchSize dispatcherPauseOnAckStatePersistentEnabled
    dispatcherReadFailureBackoffInitialTimeInMs dispatcherReadFailureBackoffMandatoryStopTimeInMs
    dispatcherReadFailureBackoffMaxTimeInMs dispatcherRetryBackoffInitialTimeInMs dispatcherRetryBackoffMaxTimeInMs
    dispatchRateLimiterFactoryClassName dispatchThrottlingForFilteredEntriesEnabled
    enableBusyWait
    enableNamespaceIsolationUpdateOnTime enablePackagesManagement
    enableRunBookieAutoRecoveryTogether enableRunBookieTogether enableShadowTopics entryFilterNames
    entryFiltersDirectory exposingBrokerEntryMetadataToClientEnabled failureDomainsEnabled
    flowOrQpsDifferenceThresholdPercentage flushInterval gcWaitTime globalZookeeperServers haProxyProtocolEnabled
    healthCheckMetricsUpdateTimeInSeconds httpMaxRequestSize httpMaxResponseHeaderSize
    httpRequestsFailOnUnknownPropertiesEnabled httpRequestsLimitEnabled httpRequestsMaxPerSecond
    httpServerAcceptQueueSize httpServerEnabled httpServerGzipCompressionExcludedPaths httpServerIdleTimeout
    httpServerPort httpServerThreadPoolQueueSize inflightSaslContextExpiryMs isRunningStandalone jcaProvider
    jsseProvider jvmGCMetricsLoggerClassName keySharedUnblockingIntervalMs kinitCommand lazyCursorRecovery
    ledgerDirectories ledgerStorageClass loadBalanceSheddingDelayInSeconds loadManagerClassName
    loadManagerMigrationEnabled loadManagerServiceUnitStateTableViewClassName lookupPropertyPrefix
    lowerBoundarySheddingEnabled maxConcurrentNonPersistentMessagePerConnection
    maxConsumerMetadataSize maxInflightSaslContext maxNamespacesPerTenant maxPendingPublishdRequestsPerConnection
    maxPendingPublishRequestsPerConnection maxSecondsToClearTopicNameCache maxTenants maxUnackedMessagesPerBroker
    maxUnackedMessagesPerSubscriptionOnBrokerBlocked maxUnloadBundleNumPerShedding maxUnloadPercentage
    messagePublishBufferCheckIntervalInMillis messagingProtocols minUnloadMessage minUnloadMessageThroughput
    namespaceBundleUnloadingTimeoutMs narExtractionDirectory nettyMaxFrameSizeBytes numAcceptorThreads
    numCacheExecutorThreadPoolSize numExecutorThreadPoolSize numHttpServerThreads numIOThreads
    numOrderedExecutorThreads numTransactionReplayThreadPoolSize numWorkerThreadsForNonPersistentTopic
    offloadersDirectory persistentUnackedRangesWithMultipleEntriesEnabled preciseDispatcherFlowControl
    preciseTimeBasedBacklogQuotaCheck preciseTopicPublishRateLimiterEnable preferLaterVersions
    prometheusStatsHttpPort protocolHandlerDirectory pulsarResourcesExtendedClassName readOnlyModeEnabled
    resourceUsageTransportClassName schemaJsonAllowLegacyJacksonFormat
    schemaLedgerForceRecovery skipBrokerShutdownOnOOM splitTopicAndPartitionLabelInPrometheus sslFactoryPlugin
    sslFactoryPluginParams statsProviderClass statsUpdateFrequencyInSecs statsUpdateInitialDelayInSecs
    streamingDispatch strictAuthMethod strictBookieAffinityEnabled strictTopicNameEnabled
    subscriptionKeySharedEnable subscriptionKeySharedUseClassicPersistentImplementation
    subscriptionRedeliveryTrackerEnabled subscriptionSharedUseClassicPersistentImplementation
    supportedNamespaceBundleSplitAlgorithms systemTopicEnabled systemTopicSchemaCompatibilityStrategy
    tlsCertRefreshCheckDurationSec tlsEnabledWithKeyStore tlsFactoryClassName
    tlsFactoryConfig tlsHostnameVerificationEnabled tlsKeyStore tlsKeyStorePassword tlsKeyStoreType tlsProvider
    tlsTrustStore tlsTrustStorePassword tlsTrustStoreType tokenSettingPrefix topicBundleAssignmentStrategy
    topicCompactionRetainNullKey topicFactoryClassName topicFencingTimeoutSeconds topicLoadTimeoutSeconds
    topicNameCacheMaxCapacity topicOrderedExecutorThreadNum topicPoliciesCacheInitTimeoutSeconds
    topicPoliciesServiceClassName topicPolicyListenerReplayEnabled topicsPatternRegexImplementation
    triggerOffloadOnTopicLoad unblockStuckSubscriptionEnabled useSeparateThreadPoolForProtocolHandlers
    webServiceHaProxyProtocolEnabled webServiceLogDetailedAddresses webServiceTlsProvider
    webServiceTrustXForwardedFor
    """.split()  # noqa: SIM905 -- so many names are read without quotes
)


def is_pulsars(name: str) -> bool:
    """Return whether an unsupported key is one of Pulsar's."""
    return name in _NAMES or name.startswith(_FAMILIES)
