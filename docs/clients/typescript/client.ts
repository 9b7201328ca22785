// Requests the history of a market and waits for its end; prints the notifications of a topic, without end; or prints
// the states of the requests whose ids it reads, one a line:
//
//   npm install && npm run stubs
//   npm start -- 127.0.0.1:50051 history BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z
//   npm start -- 127.0.0.1:50051 follow RESPONSE:my-client
//   npm start -s -- 127.0.0.1:50051 states < ids.txt

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import type { GetRequestResponse__Output } from "./gen/dexorder/relay/v1/GetRequestResponse.js";
import type { HistoryServiceClient } from "./gen/dexorder/relay/v1/HistoryService.js";
import type { Notification__Output } from "./gen/dexorder/relay/v1/Notification.js";
import type { SubmitHistoricalResponse__Output } from "./gen/dexorder/relay/v1/SubmitHistoricalResponse.js";
import type { WatchNotificationsRequest } from "./gen/dexorder/relay/v1/WatchNotificationsRequest.js";
import type { WatchNotificationsResponse__Output } from "./gen/dexorder/relay/v1/WatchNotificationsResponse.js";
import type { ProtoGrpcType } from "./gen/history_service.js";

// The longest time without an answer: the relay sends keep_alive every 20 seconds.
const SILENCE_MS = 60_000;
const PROTOS = fileURLToPath(new URL("../../../protos", import.meta.url));

function connect(address: string): HistoryServiceClient {
  const definition = loader.loadSync("dexorder/relay/v1/history_service.proto", {
    includeDirs: [PROTOS], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true,
  });
  const packages = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;
  return new packages.dexorder.relay.v1.HistoryService(address, grpc.credentials.createInsecure());
}

// Submits a request and waits for its notification.
async function history(client: HistoryServiceClient, ticker: string, period: string, start: string, end: string) {
  // The id is ours, so the call may be repeated after a lost connection.
  const request = {
    request_id: `ts-${process.hrtime.bigint()}`, ticker, period_seconds: Number(period),
    start_time: nanoseconds(start), end_time: nanoseconds(end),
  };
  const response = await repeated<SubmitHistoricalResponse__Output>((done) => client.SubmitHistorical(request, done));
  const submitted = response.answer!;
  if (submitted.error_message) {
    throw new Error(`${submitted.status}: ${submitted.error_message}`);
  }
  for await (const notification of notifications(client, submitted.notification_topic)) {
    const ended = notification.ready!;
    const table = `${ended.iceberg_namespace}.${ended.iceberg_table}`;
    console.log(`${ended.status}: ${ended.row_count} rows in ${table} ${ended.error_message ?? ""}`);
    return;
  }
}

// Prints the notifications of a topic.
async function follow(client: HistoryServiceClient, topic: string) {
  for await (const { ready } of notifications(client, topic)) {
    console.log(`${ready!.request_id} ${ready!.status}`);
  }
}

// Prints the state of each request whose id is a line of stdin.
async function states(client: HistoryServiceClient) {
  for await (const request_id of createInterface({ input: process.stdin })) {
    const answer = await repeated<GetRequestResponse__Output>((done) => client.GetRequest({ request_id }, done));
    console.log(`${request_id} ${answer.record!.state}`);
  }
}

// Yields the notifications of a topic, across restarts of the relay.
async function* notifications(client: HistoryServiceClient, topic: string): AsyncGenerator<Notification__Output> {
  const watched: WatchNotificationsRequest = { topic }; // its `after` is the last position received
  for (;;) {
    const answers = client.WatchNotifications(watched);
    answers.on("error", () => {}); // the loop throws it; cancelling makes another one
    const silence = setTimeout(() => answers.cancel(), SILENCE_MS);
    try {
      for await (const answer of answers as AsyncIterable<WatchNotificationsResponse__Output>) {
        silence.refresh();
        if (answer.reset) {
          console.error("reset: the relay can't continue at our position; all that is stored follows");
        }
        const start = answer.opened ?? answer.reset ?? answer.notification;
        watched.after = start?.cursor ?? watched.after;
        if (answer.notification) {
          yield answer.notification;
        }
      }
    } catch (error) {
      throwUnlessLost(error);
    } finally {
      clearTimeout(silence);
      answers.cancel();
    }
    await pause();
  }
}

type Callback<T> = (error: grpc.ServiceError | null, answer?: T) => void;

// Makes a call, again while the relay can't be reached, or is stopped.
async function repeated<T>(call: (done: Callback<T>) => void): Promise<T> {
  for (;;) {
    try {
      return await new Promise((resolve, reject) => {
        call((error, answer) => (error ? reject(error) : resolve(answer!)));
      });
    } catch (error) {
      throwUnlessLost(error);
    }
    await pause();
  }
}

// Throws an error that the relay sent. All of its errors have details, so one of these codes without them is of the
// connection, of a proxy that reset the stream, or of our own cancelling after a silence.
function throwUnlessLost(error: unknown) {
  const { code, metadata } = error as grpc.ServiceError;
  const { UNAVAILABLE, INTERNAL, UNKNOWN, CANCELLED } = grpc.status;
  const isOfProxy = [INTERNAL, UNKNOWN, CANCELLED].includes(code) && !metadata?.get("grpc-status-details-bin").length;
  if (code !== UNAVAILABLE && !isOfProxy) {
    throw error;
  }
  console.error(`waiting for the relay: ${(error as Error).message}`);
}

function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 1_000));
}

// Times do not fit into a JavaScript number: they are texts.
function nanoseconds(time: string): string {
  return (BigInt(Date.parse(time)) * 1_000_000n).toString();
}

const COMMANDS: Record<string, (client: HistoryServiceClient, ...words: [any, any, any, any]) => Promise<void>> = {
  history, follow, states,
};
const [address, command, ...words] = process.argv.slice(2);
const run = COMMANDS[command ?? ""];
if (!address || !run || words.length !== run.length - 1) {
  throw new Error("arguments: ADDRESS history TICKER PERIOD_SECONDS START END | ADDRESS follow TOPIC | ADDRESS states");
}
const client = connect(address);
await run(client, ...(words as [string, string, string, string]));
client.close();
