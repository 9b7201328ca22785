// The cases of gRPC's interop tests that concern calls, by grpc-go against the handlers of
// tests/unit/services/common/rpc/native/rig.py. Messages are bytes. Prints each case that passes; exits with 1 at the
// first that does not.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const service = "/test.Service/"
const special = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"

type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (raw) Name() string                       { return "raw" }

var conn *grpc.ClientConn

func call(ctx context.Context, name string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	var answer []byte
	err := conn.Invoke(ctx, name, &request, &answer, options...)
	return answer, err
}

func stream(ctx context.Context, name string) grpc.ClientStream {
	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	opened, err := conn.NewStream(ctx, both, service+name)
	check("open "+name, err == nil, err)
	return opened
}

func send(opened grpc.ClientStream, data []byte) { check("send", opened.SendMsg(&data) == nil, nil) }

func check(what string, holds bool, found any) {
	if !holds {
		fmt.Println("FAILED", what, found)
		os.Exit(1)
	}
}

func main() {
	var err error
	codec := grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}))
	conn, err = grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()), codec)
	check("connect", err == nil, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, each := range []struct {
		name string
		run  func(context.Context)
	}{
		{"empty_unary", emptyUnary}, {"large_unary", largeUnary}, {"client_streaming", clientStreaming},
		{"server_streaming", serverStreaming}, {"ping_pong", pingPong}, {"empty_stream", emptyStream},
		{"cancel_after_begin", cancelAfterBegin}, {"cancel_after_first_response", cancelAfterFirst},
		{"timeout_on_sleeping_server", timeout}, {"custom_metadata", customMetadata},
		{"status_code_and_message", statuses}, {"unimplemented", unimplemented},
	} {
		each.run(ctx)
		fmt.Println(each.name)
	}
}

func emptyUnary(ctx context.Context) {
	answer, err := call(ctx, service+"echo", nil)
	check("empty", err == nil && len(answer) == 0, err)
}

func largeUnary(ctx context.Context) {
	large := bytes.Repeat([]byte("0123456789"), 31_415)
	answer, err := call(ctx, service+"echo", large)
	check("large", err == nil && bytes.Equal(answer, large), err)
}

func clientStreaming(ctx context.Context) {
	opened := stream(ctx, "collect")
	for _, size := range []int{27182, 8, 1828, 45904} {
		send(opened, make([]byte, size))
	}
	opened.CloseSend()
	var answer []byte
	err := opened.RecvMsg(&answer)
	check("sum", err == nil && string(answer) == "74922", string(answer))
}

func serverStreaming(ctx context.Context) {
	opened := stream(ctx, "many")
	send(opened, []byte("31 41592 0"))
	opened.CloseSend()
	for number := range 31 {
		var answer []byte
		err := opened.RecvMsg(&answer)
		check("answer", err == nil && len(answer) == 41592, number)
	}
	check("end", opened.RecvMsg(new([]byte)) == io.EOF, nil)
}

func pingPong(ctx context.Context) {
	opened := stream(ctx, "chat")
	for _, size := range []int{31415, 9, 2653, 58979} {
		send(opened, make([]byte, size))
		var answer []byte
		err := opened.RecvMsg(&answer)
		check("pong", err == nil && len(answer) == size, err)
	}
	opened.CloseSend()
	check("end", opened.RecvMsg(new([]byte)) == io.EOF, nil)
}

func emptyStream(ctx context.Context) {
	opened := stream(ctx, "chat")
	opened.CloseSend()
	check("end", opened.RecvMsg(new([]byte)) == io.EOF, nil)
}

func cancelAfterBegin(ctx context.Context) {
	own, cancel := context.WithCancel(ctx)
	opened := stream(own, "collect")
	cancel()
	check("cancelled", status.Code(opened.RecvMsg(new([]byte))) == codes.Canceled, nil)
}

func cancelAfterFirst(ctx context.Context) {
	own, cancel := context.WithCancel(ctx)
	opened := stream(own, "chat")
	send(opened, make([]byte, 27182))
	check("first", opened.RecvMsg(new([]byte)) == nil, nil)
	cancel()
	check("cancelled", status.Code(opened.RecvMsg(new([]byte))) == codes.Canceled, nil)
}

func timeout(ctx context.Context) {
	own, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err := call(own, service+"wait", nil)
	check("deadline", status.Code(err) == codes.DeadlineExceeded, err)
}

func customMetadata(ctx context.Context) {
	own := metadata.AppendToOutgoingContext(ctx, "x-grpc-test-echo-initial", "test_initial",
		"x-grpc-test-echo-trailing-bin", "\xab\xab\xab")
	var head, trailer metadata.MD
	_, err := call(own, service+"echo", nil, grpc.Header(&head), grpc.Trailer(&trailer))
	check("call", err == nil, err)
	check("initial", head.Get("x-grpc-test-echo-initial")[0] == "test_initial", head)
	check("trailing", trailer.Get("x-grpc-test-echo-trailing-bin")[0] == "\xab\xab\xab", trailer)
}

func statuses(ctx context.Context) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		_, err := call(ctx, service+"status", fmt.Appendf(nil, "%d %s", code, special))
		found := status.Convert(err)
		check("status", found.Code() == code && found.Message() == special, found)
	}
}

func unimplemented(ctx context.Context) {
	for _, path := range []string{service + "none", "/none/echo"} {
		_, err := call(ctx, path, nil)
		check(path, status.Code(err) == codes.Unimplemented, err)
	}
}
