// Requests the history of a market and waits for its notification:
//
//	go run . 127.0.0.1:50051 BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	ingestv1 "dexorder.com/proto/dexorder/ingest/v1"
	relayv1 "dexorder.com/proto/dexorder/relay/v1"
)

func main() {
	if len(os.Args) != 6 {
		log.Fatal("arguments: ADDRESS TICKER PERIOD_SECONDS START END")
	}
	period, err := strconv.ParseUint(os.Args[3], 10, 32)
	check(err)
	start, err := time.Parse(time.RFC3339, os.Args[4])
	check(err)
	end, err := time.Parse(time.RFC3339, os.Args[5])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()

	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer connection.Close()
	relay := relayv1.NewRelayServiceClient(connection)

	// The id is ours, so repeating the call after a lost connection changes nothing.
	id := fmt.Sprintf("go-%d", time.Now().UnixNano())
	submitted, err := relay.SubmitHistorical(ctx, &ingestv1.SubmitHistoricalRequest{
		RequestId: id, Ticker: os.Args[2], PeriodSeconds: uint32(period),
		StartTime: uint64(start.UnixNano()), EndTime: uint64(end.UnixNano()),
	})
	check(err)
	if submitted.GetErrorMessage() != "" {
		log.Fatalf("%s: %s", submitted.Status, submitted.GetErrorMessage())
	}

	// After a break: the same call with AfterCursor set to the last cursor received.
	notifications, err := relay.WatchNotifications(ctx,
		&relayv1.WatchNotificationsRequest{Topic: submitted.NotificationTopic})
	check(err)
	answer, err := notifications.Recv()
	check(err)
	ended := answer.Notification
	fmt.Printf("%s: %d rows in %s.%s %s\n",
		ended.Status, ended.RowCount, ended.IcebergNamespace, ended.IcebergTable, ended.GetErrorMessage())
}

// check ends the program with a failed call's text and the field that it names.
func check(err error) {
	if err == nil {
		return
	}
	for _, detail := range status.Convert(err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, violation := range bad.FieldViolations {
				log.Printf("field %s: %s", violation.Field, violation.Description)
			}
		}
	}
	log.Fatal(err)
}
