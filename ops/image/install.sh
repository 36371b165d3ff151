#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts the commands of Apache Pulsar's images in front of the penstock that is installed in this root's python3.
#     install.sh [HOME]
set -eu
home=${1-/pulsar}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$home/bin" "$home/conf" "$home/data"
for name in pulsar pulsar-admin apply-config-from-env.py; do
  cp "$here/bin/$name" "$home/bin/$name"
  chmod 755 "$home/bin/$name"
done
# Every setting, each with its default, and in a comment.
for name in standalone broker proxy client; do
  [ -e "$home/conf/$name.conf" ] || cp "$here/../broker.conf" "$home/conf/$name.conf"
done
"$home/bin/pulsar" version
