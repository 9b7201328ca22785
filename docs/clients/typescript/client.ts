// Requests the history of a market and waits for its notification:
//
//   npm install && npm run stubs
//   npm start -- 127.0.0.1:50051 BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

import type { SubmitResponse__Output } from "./gen/dexorder/ingest/v1/SubmitResponse.js";
import type { SubscribeNotificationsResponse__Output } from "./gen/dexorder/relay/v1/WatchNotificationsResponse.js";
import type { ProtoGrpcType } from "./gen/relay_service.js";

const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url));

async function main(address: string, ticker: string, period: string, start: string, end: string): Promise<void> {
  const definition = loader.loadSync("dexorder/relay/v1/relay_service.proto", {
    includeDirs: [PROTOS], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true,
  });
  const packages = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;
  const relay = new packages.dexorder.relay.v1.RelayService(address, grpc.credentials.createInsecure());

  // The id is ours, so repeating the call after a lost connection changes nothing.
  const submitted = await new Promise<SubmitResponse__Output>((resolve, reject) => {
    relay.SubmitHistorical(
      {
        request_id: `ts-${process.hrtime.bigint()}`, ticker, period_seconds: Number(period),
        start_time: nanoseconds(start), end_time: nanoseconds(end),
      },
      (error, answer) => (error || !answer ? reject(error) : resolve(answer)),
    );
  });
  if (submitted.error_message) {
    throw new Error(`${submitted.status}: ${submitted.error_message}`);
  }

  // After a break: the same call with after_cursor set to the last cursor received.
  const notifications = relay.WatchNotifications({ topic: submitted.notification_topic });
  const answer = await new Promise<SubscribeNotificationsResponse__Output>((resolve, reject) => {
    notifications.once("data", resolve).on("error", reject);
  });
  const ended = answer.notification!;
  const table = `${ended.iceberg_namespace}.${ended.iceberg_table}`;
  console.log(`${ended.status}: ${ended.row_count} rows in ${table} ${ended.error_message ?? ""}`);
  notifications.cancel();
  relay.close();
}

// Times do not fit into a JavaScript number: they are texts.
function nanoseconds(time: string): string {
  return (BigInt(Date.parse(time)) * 1_000_000n).toString();
}

const [address, ticker, period, start, end] = process.argv.slice(2);
if (!address || !ticker || !period || !start || !end) {
  throw new Error("arguments: ADDRESS TICKER PERIOD_SECONDS START END");
}
await main(address, ticker, period, start, end);
