#!/bin/sh
# Creates an authority, a certificate for both servers and a token, unless valid ones exist: for
# trials of TLS. The authority's key is discarded, so that it signs nothing else.
set -eu
umask 077
server=/secrets/server trainer=/secrets/trainer
cd /dev/shm

fit() {
    [ -s $trainer/token ] && grep -qxF "$(cat $trainer/token)" $server/tokens \
        && openssl verify -CAfile $trainer/ca.crt $server/server.crt \
        && openssl x509 -checkend 86400 -noout -in $server/server.crt \
        && openssl x509 -pubkey -noout -in $server/server.crt > of-certificate \
        && openssl pkey -pubout -in $server/server.key | cmp - of-certificate
}
! fit > /dev/null 2>&1 || exit 0

new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
$new -x509 -days 365 -subj "/CN=tokenfeed authority" -keyout ca.key -out ca.crt
$new -subj "/CN=tokenfeed" -keyout server.key -out server.csr
echo "subjectAltName = DNS:server-a, DNS:server-b, DNS:localhost, IP:127.0.0.1" > names
openssl x509 -req -in server.csr -days 365 -extfile names -CA ca.crt -CAkey ca.key -CAcreateserial \
    -out server.crt
openssl rand -hex 32 > token
# Running servers accept the new token before a trainer has it, and the previous token as well.
{ cat token; head -n 1 $server/tokens 2> /dev/null || true; } > tokens

place() { # atomically
    cp "$1" "$2/.$1" && mv "$2/.$1" "$2/$1"
}
for name in server.key server.crt tokens; do place $name $server; done
place ca.crt $trainer
sleep 2
place token $trainer
