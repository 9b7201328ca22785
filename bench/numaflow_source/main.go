// A user-defined source made with numaflow-go, the peer of bench.udsource: records of one size from memory, without end.
//
// It keeps no account of what is in flight, so it costs less than any real source on the same server.
package main

import (
	"context"
	"flag"
	"log"
	"strconv"
	"time"

	"github.com/numaproj/numaflow-go/pkg/sourcer"
)

type memory struct {
	payload    []byte
	partitions int32
	next       int64
}

func (m *memory) Read(_ context.Context, request sourcer.ReadRequest, out chan<- sourcer.Message) {
	now, headers := time.Now(), map[string]string{"h": "v"}
	for range request.Count() {
		partition := int32(m.next % int64(m.partitions))
		offset := sourcer.NewOffset(strconv.AppendInt(nil, m.next/int64(m.partitions), 10), partition)
		key := "key-" + strconv.FormatInt(m.next%100, 10)
		out <- sourcer.NewMessage(m.payload, offset, now).WithKeys([]string{key}).WithHeaders(headers)
		m.next++
	}
}

func (m *memory) Ack(context.Context, sourcer.AckRequest) {}

func (m *memory) Nack(context.Context, sourcer.NackRequest) {}

func (m *memory) Pending(context.Context) int64 { return -1 }

func (m *memory) ActivePartitions(context.Context) []int32 {
	found := make([]int32, m.partitions)
	for number := range found {
		found[number] = int32(number)
	}
	return found
}

func (m *memory) TotalPartitions(context.Context) *int32 { return &m.partitions }

func main() {
	socket := flag.String("socket", "", "path of the unix socket; the info file is beside it")
	bytes := flag.Int("payload-bytes", 1024, "size of each payload")
	partitions := flag.Int("partitions", 1, "number of partitions")
	flag.Parse()
	source := &memory{payload: make([]byte, *bytes), partitions: int32(*partitions)}
	server := sourcer.NewServer(
		source, sourcer.WithSockAddr(*socket), sourcer.WithServerInfoFilePath(*socket+".info"))
	if err := server.Start(context.Background()); err != nil {
		log.Fatal(err)
	}
}
