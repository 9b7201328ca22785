// Requests the history of a market and waits for its notification:
//
//   npm install && npm run stubs
//   npm start -- 127.0.0.1:50051 BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

import type { SubmitResponse__Output } from "./gen/dexorder/ingest/v1/SubmitResponse.js";
import type { HistoryServiceClient } from "./gen/dexorder/relay/v1/HistoryService.js";
import type { Notification__Output } from "./gen/dexorder/relay/v1/Notification.js";
import type { WatchNotificationsRequest } from "./gen/dexorder/relay/v1/WatchNotificationsRequest.js";
import type { WatchNotificationsResponse__Output } from "./gen/dexorder/relay/v1/WatchNotificationsResponse.js";
import type { ProtoGrpcType } from "./gen/history_service.js";

const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url));

async function main(address: string, ticker: string, period: string, start: string, end: string): Promise<void> {
  const definition = loader.loadSync("dexorder/relay/v1/history_service.proto", {
    includeDirs: [PROTOS], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true,
  });
  const packages = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;
  const history = new packages.dexorder.relay.v1.HistoryService(address, grpc.credentials.createInsecure());

  // The id is ours, so repeating the call after a lost connection changes nothing.
  const request = {
    request_id: `ts-${process.hrtime.bigint()}`, ticker, period_seconds: Number(period),
    start_time: nanoseconds(start), end_time: nanoseconds(end),
  };
  const submitted = await repeated(() => new Promise<SubmitResponse__Output>((resolve, reject) => {
    history.SubmitHistorical(request, (error, answer) => (error || !answer ? reject(error) : resolve(answer)));
  }));
  if (submitted.error_message) {
    throw new Error(`${submitted.status}: ${submitted.error_message}`);
  }

  const watched: WatchNotificationsRequest = { topic: submitted.notification_topic };
  const ended = (await repeated(() => next(history, watched))).ready!;
  const table = `${ended.iceberg_namespace}.${ended.iceberg_table}`;
  console.log(`${ended.status}: ${ended.row_count} rows in ${table} ${ended.error_message ?? ""}`);
  history.close();
}

// Returns the next notification. Afterwards watched.after is the last position received, so that the same call resumes.
async function next(history: HistoryServiceClient, watched: WatchNotificationsRequest): Promise<Notification__Output> {
  const answers = history.WatchNotifications(watched);
  answers.on("error", () => {}); // the loop throws it; cancelling makes another one
  try {
    for await (const answer of answers as AsyncIterable<WatchNotificationsResponse__Output>) {
      if (answer.reset) {
        console.error("the relay no longer has all that follows our cursor; all that is stored follows");
      }
      watched.after = (answer.opened ?? answer.reset ?? answer.notification)!.cursor;
      if (answer.notification) {
        return answer.notification;
      }
    }
  } finally {
    answers.cancel();
  }
  throw new Error("the stream has ended");
}

// Repeats a call while the relay can't be reached, or is stopped.
async function repeated<T>(call: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if ((error as grpc.ServiceError).code !== grpc.status.UNAVAILABLE) {
        throw error;
      }
      console.error(`waiting for the relay: ${(error as Error).message}`);
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }
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
