// Requests the history of a market and waits for its end; prints the notifications of a topic, without end; or prints
// the states of the requests whose ids it reads, one a line:
//
//	go run . 127.0.0.1:50051 history BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z
//	go run . 127.0.0.1:50051 follow RESPONSE:my-client
//	go run . 127.0.0.1:50051 states < ids.txt
package main

import (
	"bufio"
	"context"
	_ "embed"
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

// With this config gRPC waits for a relay that restarts, and repeats the calls that may be repeated. It does not reopen
// streams that have begun: see subscription.
//
//go:embed service_config.json
var serviceConfig string

func main() {
	if len(os.Args) < 3 {
		log.Fatal("arguments: ADDRESS history TICKER PERIOD_SECONDS START END | ADDRESS follow TOPIC | ADDRESS states")
	}
	connection, err := grpc.NewClient(os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(serviceConfig))
	check(err)
	defer connection.Close()
	client := relayv1.NewHistoryServiceClient(connection)

	ctx := context.Background()
	switch command, arguments := os.Args[2], os.Args[3:]; {
	case command == "history" && len(arguments) == 4:
		history(ctx, client, arguments[0], arguments[1], arguments[2], arguments[3])
	case command == "follow" && len(arguments) == 1:
		follow(ctx, client, arguments[0])
	case command == "states" && len(arguments) == 0:
		states(ctx, client)
	default:
		log.Fatalf("unknown command, or wrong number of arguments: %q", os.Args[2:])
	}
}

// history submits a request and waits for its notification.
func history(ctx context.Context, client relayv1.HistoryServiceClient, ticker, period, start, end string) {
	periodSeconds, err := strconv.ParseUint(period, 10, 32)
	check(err)
	// The id is ours, so gRPC may repeat the call after a lost connection.
	response, err := client.SubmitHistorical(ctx, &ingestv1.SubmitHistoricalRequest{
		RequestId: fmt.Sprintf("go-%d", time.Now().UnixNano()), Ticker: ticker, PeriodSeconds: uint32(periodSeconds),
		StartTime: nanoseconds(start), EndTime: nanoseconds(end),
	})
	check(err)
	submitted := response.GetAnswer()
	if submitted.GetErrorMessage() != "" {
		log.Fatalf("%s: %s", submitted.GetStatus(), submitted.GetErrorMessage())
	}
	notification, err := newSubscription(client, submitted.GetNotificationTopic()).next(ctx)
	check(err)
	ended := notification.Ready
	fmt.Printf("%s: %d rows in %s.%s %s\n",
		ended.Status, ended.RowCount, ended.IcebergNamespace, ended.IcebergTable, ended.GetErrorMessage())
}

// follow prints the notifications of a topic.
func follow(ctx context.Context, client relayv1.HistoryServiceClient, topic string) {
	for notifications := newSubscription(client, topic); ; {
		notification, err := notifications.next(ctx)
		check(err)
		fmt.Println(notification.Ready.RequestId, notification.Ready.Status)
	}
}

// states prints the state of each request whose id is a line of stdin.
func states(ctx context.Context, client relayv1.HistoryServiceClient) {
	ids := bufio.NewScanner(os.Stdin)
	for ids.Scan() {
		answer, err := client.GetRequest(ctx, &relayv1.GetRequestRequest{RequestId: ids.Text()})
		check(err)
		fmt.Println(ids.Text(), answer.Record.State)
	}
	check(ids.Err())
}

// subscription reads the notifications of a topic, across restarts of the relay.
type subscription struct {
	client  relayv1.HistoryServiceClient
	request *relayv1.WatchNotificationsRequest // its After is the last position received
	stream  grpc.ServerStreamingClient[relayv1.WatchNotificationsResponse]
	cancel  context.CancelFunc // ends the stream
}

func newSubscription(client relayv1.HistoryServiceClient, topic string) *subscription {
	return &subscription{client: client, request: &relayv1.WatchNotificationsRequest{Topic: topic}}
}

// next returns the next notification.
func (s *subscription) next(ctx context.Context) (*relayv1.Notification, error) {
	for {
		answer, err := s.receive(ctx)
		if isLost(err) {
			log.Printf("waiting for the relay: %v", err)
			time.Sleep(time.Second)
			continue
		}
		if err != nil {
			return nil, err
		}
		switch message := answer.Message.(type) {
		case *relayv1.WatchNotificationsResponse_Opened:
			s.request.After = message.Opened.Cursor
		case *relayv1.WatchNotificationsResponse_Reset_:
			log.Print("reset: the relay can't continue at our position; all that is stored follows")
			s.request.After = message.Reset_.Cursor
		case *relayv1.WatchNotificationsResponse_Notification:
			s.request.After = message.Notification.Cursor
			return message.Notification, nil
		}
	}
}

// silence is the longest time without an answer: the relay sends keep_alive every 20 seconds.
const silence = 60 * time.Second

// receive returns the next answer, of a new stream after an error or a silence.
func (s *subscription) receive(ctx context.Context) (answer *relayv1.WatchNotificationsResponse, err error) {
	if s.stream == nil {
		ctx, s.cancel = context.WithCancel(ctx)
		s.stream, err = s.client.WatchNotifications(ctx, s.request)
	}
	if err == nil {
		timer := time.AfterFunc(silence, s.cancel)
		answer, err = s.stream.Recv()
		timer.Stop()
	}
	if err != nil {
		s.cancel()
		s.stream = nil
	}
	return answer, err
}

// isLost says whether the relay could not be reached, was stopped or was silent, or a proxy reset the stream. All errors
// of the relay have details, so one of these codes without them is of the connection or a proxy.
func isLost(err error) bool {
	switch state := status.Convert(err); state.Code() {
	case codes.Unavailable:
		return true
	case codes.Internal, codes.Unknown, codes.Canceled:
		return len(state.Details()) == 0 // also of io.EOF, the end of a stream
	default:
		return false
	}
}

func nanoseconds(text string) uint64 {
	moment, err := time.Parse(time.RFC3339, text)
	check(err)
	return uint64(moment.UnixNano())
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
