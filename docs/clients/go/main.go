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
	"google.golang.org/grpc/codes"
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
	history := relayv1.NewHistoryServiceClient(connection)

	// The id is ours, so repeating the call after a lost connection changes nothing.
	request := &ingestv1.SubmitHistoricalRequest{
		RequestId: fmt.Sprintf("go-%d", time.Now().UnixNano()), Ticker: os.Args[2], PeriodSeconds: uint32(period),
		StartTime: uint64(start.UnixNano()), EndTime: uint64(end.UnixNano()),
	}
	submitted, err := history.SubmitHistorical(ctx, request)
	for isLost(err) {
		log.Printf("waiting for the relay: %v", err)
		time.Sleep(time.Second)
		submitted, err = history.SubmitHistorical(ctx, request)
	}
	check(err)
	if submitted.GetErrorMessage() != "" {
		log.Fatalf("%s: %s", submitted.Status, submitted.GetErrorMessage())
	}

	watched := &relayv1.WatchNotificationsRequest{Topic: submitted.NotificationTopic}
	notification, err := next(ctx, history, watched)
	for isLost(err) {
		log.Printf("waiting for the relay: %v", err)
		time.Sleep(time.Second)
		notification, err = next(ctx, history, watched)
	}
	check(err)
	ended := notification.Ready
	fmt.Printf("%s: %d rows in %s.%s %s\n",
		ended.Status, ended.RowCount, ended.IcebergNamespace, ended.IcebergTable, ended.GetErrorMessage())
}

// next returns the next notification. Afterwards watched.After is the last position received, so that the same call resumes.
func next(
	ctx context.Context, history relayv1.HistoryServiceClient, watched *relayv1.WatchNotificationsRequest,
) (*relayv1.Notification, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := history.WatchNotifications(ctx, watched)
	if err != nil {
		return nil, err
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		switch message := answer.Message.(type) {
		case *relayv1.WatchNotificationsResponse_Opened:
			watched.After = message.Opened.Cursor
		case *relayv1.WatchNotificationsResponse_Reset_:
			log.Print("the relay no longer has all that follows our cursor; all that is stored follows")
			watched.After = message.Reset_.Cursor
		case *relayv1.WatchNotificationsResponse_Notification:
			watched.After = message.Notification.Cursor
			return message.Notification, nil
		}
	}
}

// isLost says whether the relay could not be reached, or was stopped.
func isLost(err error) bool {
	return status.Code(err) == codes.Unavailable
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
