// Client process of bench.pixy: one job per line on stdin, one result per line on stdout.
//
// One connection per job, or one per caller if the calls are of the HTTP API; every caller repeats its call until the time is up. The gateway and the empty server get the
// same calls. Messages are encoded field by field, so that the client takes as little of the cores as it can.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

type job struct {
	Kind        string  `json:"kind"`
	Address     string  `json:"address"`
	Topic       string  `json:"topic"`
	Group       string  `json:"group"`
	Callers     int     `json:"callers"`
	WarmSeconds float64 `json:"warm_seconds"`
	Seconds     float64 `json:"seconds"`
}

type measured struct {
	Rate  float64 `json:"rate"`
	Calls int64   `json:"calls"`
}

// raw passes messages through as bytes.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func text(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func number(b []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}

// place returns the partition and the offset of a ConsRs.
func place(b []byte) (partition, offset uint64) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		b = b[n:]
		if kind == protowire.VarintType && field <= 2 {
			value, n := protowire.ConsumeVarint(b)
			b = b[n:]
			if field == 1 {
				partition = value
			} else {
				offset = value
			}
			continue
		}
		b = b[protowire.ConsumeFieldValue(field, kind, b):]
	}
	return partition, offset
}

// requests returns the method of a kind of call and a function from the last answer (nil at first) to the next request.
func requests(j job) (string, func([]byte) []byte, error) {
	value := make([]byte, 1024)
	rand.Read(value)
	record := text(number(text(nil, 2, []byte(j.Topic)), 4, 1), 5, value)
	read := text(text(nil, 2, []byte(j.Topic)), 3, []byte(j.Group))
	constant := func(request []byte) func([]byte) []byte { return func([]byte) []byte { return request } }
	switch j.Kind {
	case "produce sync":
		return "/KafkaPixy/Produce", constant(record), nil
	case "produce async":
		return "/KafkaPixy/Produce", constant(number(record, 6, 1)), nil
	case "consume auto":
		return "/KafkaPixy/ConsumeNAck", constant(number(read, 5, 1)), nil
	case "consume chained": // acks the previous record with each call
		return "/KafkaPixy/ConsumeNAck", func(last []byte) []byte {
			request := append([]byte(nil), read...)
			if last == nil {
				return number(request, 4, 1)
			}
			partition, offset := place(last)
			return number(number(request, 6, partition), 7, offset)
		}, nil
	}
	return "", nil, fmt.Errorf("kind %q is unknown", j.Kind)
}

// grpcCaller returns a function that makes a call of the job after the one before.
func grpcCaller(j job, connection *grpc.ClientConn) (func() error, error) {
	method, next, err := requests(j)
	var answer []byte
	return func() error {
		request := next(answer)
		answer = nil
		return connection.Invoke(context.Background(), method, request, &answer, grpc.ForceCodecV2(raw{}))
	}, err
}

// run lets the callers work and counts the calls that ended within the measurement.
func run(j job) (measured, error) {
	connection, err := grpc.NewClient(j.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return measured{}, err
	}
	defer connection.Close()
	newCaller := func() (func() error, error) { return grpcCaller(j, connection) }
	if kind, isHTTP := strings.CutPrefix(j.Kind, "http "); isHTTP {
		client := httpClient(j.Callers)
		defer client.CloseIdleConnections()
		newCaller = func() (func() error, error) { return httpCaller(j, kind, client) }
	}
	begin := time.Now().Add(time.Duration(j.WarmSeconds * float64(time.Second)))
	end := begin.Add(time.Duration(j.Seconds * float64(time.Second)))
	var counted, calls atomic.Int64
	var failure atomic.Value
	var callers sync.WaitGroup
	for range j.Callers {
		callers.Go(func() {
			call, err := newCaller()
			for now := time.Now(); err == nil && now.Before(end) && failure.Load() == nil; now = time.Now() {
				err = call()
				calls.Add(1)
				if now = time.Now(); !now.Before(begin) && now.Before(end) {
					counted.Add(1)
				}
			}
			if err != nil {
				failure.Store(err)
			}
		})
	}
	callers.Wait()
	if err, ok := failure.Load().(error); ok {
		return measured{}, err
	}
	return measured{float64(counted.Load()) / j.Seconds, calls.Load()}, nil
}

func main() {
	var _ encoding.CodecV2 = raw{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var j job
		err := json.Unmarshal(lines.Bytes(), &j)
		var result measured
		if err == nil {
			result, err = run(j)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		line, _ := json.Marshal(result)
		fmt.Println(string(line))
	}
}
