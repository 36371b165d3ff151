# SPDX-License-Identifier: Apache-2.0
"""Authentication of clients, for brokers and proxies.

    credentials    what a client presents, and the resulting identity
    options        the operator's settings
    authenticator  the enabled providers; the following modules are imported only when enabled:
    token, basic, certificates, keys
    identification turns credentials into an identity, or refuses them

Where: app makes an `Authenticator`; the broker's `AccessControl` and the sessions of a proxy ask `Identification`.
"""
