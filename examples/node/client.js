// A client in another language, from the .proto and docs/protocol.md alone: derives the identity of
// the stream, reads batches, verifies the checksum of every frame, and prints the SHA-256 of all
// rows as they are served. The server has one dataset.
//
//     npm ci
//     node client.js HOST:PORT ORDER SEED BATCH_SIZE CONTEXT_LENGTH NUM_BATCHES
import { createHash } from "node:crypto";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const includeDirs = [fileURLToPath(new URL("../../proto", import.meta.url))];
const options = { includeDirs, keepCase: true, defaults: true, longs: String };
const contract = loadSync("tokenfeed/v1/tokenfeed.proto", options);
const { TokenFeed } = grpc.loadPackageDefinition(contract).tokenfeed.v1;

const REVISION = 3; // of the contract, and of docs/protocol.md
const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});
const crc32c = (bytes) =>
  ~bytes.reduce((crc, byte) => TABLE[(crc ^ byte) & 255] ^ (crc >>> 8), -1) >>> 0;
const uint64s = (...numbers) => {
  const bytes = Buffer.alloc(8 * numbers.length);
  numbers.forEach((number, index) => bytes.writeBigUInt64LE(BigInt(number), 8 * index));
  return bytes;
};

const [target, order, seed, batch_size, context_length, num_batches] = process.argv.slice(2);
const client = new TokenFeed(target, grpc.credentials.createInsecure());
const described = await promisify(client.Describe).call(client, {});
if (!described.contract_revisions.includes(REVISION)) {
  const spoken = described.contract_revisions.join(", ") || "none that it names";
  throw new Error(`the server does not speak revision ${REVISION} of the contract, but ${spoken}`);
}
if (described.datasets.length !== 1) throw new Error("the server has more than one dataset");
// One dataset is stage 0 with source 0 alone, and nothing before it.
const lines = [
  "tokenfeed-stage-4",
  `previous=${"00".repeat(32)}`,
  "stage=0",
  "first_sample=0",
  `context_length=${context_length}`,
  "seed=0",
  "sources=1",
  "source=0",
  `fingerprint=${described.datasets[0].fingerprint.toString("hex")}`,
  `order=${order}`,
  `seed=${order === "sequential-1" ? 0 : seed}`,
  "base=0",
  "weight=1",
];
const identity = createHash("sha256").update(lines.join("\n") + "\n").digest();

const digest = createHash("sha256");
const client_name = "examples/node";
const stream = { sources: [{ order, seed }], stage: { context_length } };
const request = { batch_size, stream, num_batches, client_name };
for await (const frame of client.GetBatch(request)) {
  const place = uint64s(frame.first_sample, frame.first_row, frame.row_count, batch_size, 0, 1);
  const checksum = crc32c(Buffer.concat([identity, place, frame.tokens]));
  if (checksum !== frame.checksum || !identity.equals(frame.identity)) {
    throw new Error("wrong checksum or identity");
  }
  digest.update(frame.tokens);
}
console.log(digest.digest("hex"));
client.close();
