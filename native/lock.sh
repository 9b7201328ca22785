#!/bin/sh
# Write Cargo.lock: crates.lock, the crates by version and hash, with the id that this machine's cargo gives its registry.
set -eu
cd "$(dirname "$0")"
rm -f Cargo.lock
cargo generate-lockfile --quiet
id=$(grep -m 1 '^source = ' Cargo.lock)
sed "s|^source = .*|$id|" crates.lock > Cargo.lock.part
mv Cargo.lock.part Cargo.lock
