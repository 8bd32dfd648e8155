#!/bin/sh
# Makes an authority, a certificate of both servers and a token, where there are none that still
# hold: for trying TLS out. The authority's key is thrown away, so that it signs nothing else.
set -eu
umask 077
server=/secrets/server trainer=/secrets/trainer

if [ -s "$trainer/token" ] && openssl x509 -checkend 86400 -noout -in "$server/server.crt"; then
    exit 0
fi
rm -f "$trainer/token"
work=$(mktemp -d -p /dev/shm)
trap 'rm -r "$work"' EXIT

new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
$new -x509 -days 365 -subj "/CN=tokenfeed authority" -keyout "$work/ca.key" -out "$trainer/ca.crt"
$new -subj "/CN=tokenfeed" -keyout "$server/server.key" -out "$work/server.csr"
echo "subjectAltName = DNS:server-a, DNS:server-b, DNS:localhost, IP:127.0.0.1" > "$work/names"
openssl x509 -req -in "$work/server.csr" -days 365 -extfile "$work/names" \
    -CA "$trainer/ca.crt" -CAkey "$work/ca.key" -CAserial "$work/serial" -CAcreateserial \
    -out "$server/server.crt"
openssl rand -hex 32 | tee "$server/tokens" > "$work/token"
# Last: with it, all of them are there.
cp "$work/token" "$trainer/token"
