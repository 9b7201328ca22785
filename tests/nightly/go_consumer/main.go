// A consumer of Kafka-Pixy's protocol: it reads records of a group until none comes, acks each, and prints it.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"dexorder.com/consumer/pb"
)

func main() {
	address, topic, style := os.Args[1], os.Args[2], os.Args[3]
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	client := pb.NewKafkaPixyClient(connection)
	request := &pb.ConsNAckRq{Topic: topic, Group: topic, NoAck: true}
	for quiet := 0; quiet < 3; {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		record, err := client.ConsumeNAck(ctx, request)
		cancel()
		if code := status.Code(err); code == codes.NotFound {
			quiet++
			continue
		} else if code == codes.Unavailable {
			time.Sleep(100 * time.Millisecond)
			continue
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		quiet = 0
		fmt.Println(record.Partition, record.Offset)
		if style == "next" {
			request = &pb.ConsNAckRq{Topic: topic, Group: topic, AckPartition: record.Partition, AckOffset: record.Offset}
			continue
		}
		ack := &pb.AckRq{Topic: topic, Group: topic, Partition: record.Partition, Offset: record.Offset}
		if _, err := client.Ack(context.Background(), ack); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
