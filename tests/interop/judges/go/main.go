// Scenarios of azservicebus against a namespace, whose connection string is in CONNECTION. Prints one JSON line each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

type scenario struct {
	name string
	run  func(context.Context, *azservicebus.Client) error
}

func text(body string) *azservicebus.Message { return &azservicebus.Message{Body: []byte(body)} }

func send(ctx context.Context, client *azservicebus.Client, entity string, messages ...*azservicebus.Message) error {
	sender, err := client.NewSender(entity, nil)
	if err != nil {
		return err
	}
	defer sender.Close(ctx)
	batch, err := sender.NewMessageBatch(ctx, nil)
	if err != nil {
		return err
	}
	for _, message := range messages {
		if err := batch.AddMessage(message, nil); err != nil {
			return err
		}
	}
	return sender.SendMessageBatch(ctx, batch, nil)
}

func receive(ctx context.Context, receiver *azservicebus.Receiver, count int) ([]*azservicebus.ReceivedMessage, error) {
	var taken []*azservicebus.ReceivedMessage
	for len(taken) < count {
		more, err := receiver.ReceiveMessages(ctx, count-len(taken), nil)
		if err != nil {
			return taken, err
		}
		taken = append(taken, more...)
	}
	return taken, nil
}

func settle(ctx context.Context, client *azservicebus.Client) error {
	if err := send(ctx, client, "orders", text("0"), text("1"), text("2"), text("3")); err != nil {
		return err
	}
	receiver, err := client.NewReceiverForQueue("orders", nil)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	taken, err := receive(ctx, receiver, 4)
	if err != nil {
		return err
	}
	reason := "bad"
	err = errors.Join(
		receiver.RenewMessageLock(ctx, taken[0], nil),
		receiver.CompleteMessage(ctx, taken[0], nil),
		receiver.AbandonMessage(ctx, taken[1], nil),
		receiver.DeferMessage(ctx, taken[2], nil),
		receiver.DeadLetterMessage(ctx, taken[3], &azservicebus.DeadLetterOptions{Reason: &reason}),
	)
	if err != nil {
		return err
	}
	deferred, err := receiver.ReceiveDeferredMessages(ctx, []int64{*taken[2].SequenceNumber}, nil)
	if err != nil {
		return err
	}
	again, err := receive(ctx, receiver, 1)
	if err != nil {
		return err
	}
	return errors.Join(receiver.CompleteMessage(ctx, deferred[0], nil), receiver.CompleteMessage(ctx, again[0], nil))
}

func deadLetters(ctx context.Context, client *azservicebus.Client) error {
	options := &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}
	receiver, err := client.NewReceiverForQueue("orders", options)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	taken, err := receive(ctx, receiver, 1)
	if err != nil {
		return err
	}
	if taken[0].DeadLetterReason == nil || *taken[0].DeadLetterReason != "bad" {
		return fmt.Errorf("the reason is %v", taken[0].DeadLetterReason)
	}
	return receiver.CompleteMessage(ctx, taken[0], nil)
}

func peekAndDelete(ctx context.Context, client *azservicebus.Client) error {
	if err := send(ctx, client, "orders", text("a"), text("b")); err != nil {
		return err
	}
	options := &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}
	receiver, err := client.NewReceiverForQueue("orders", options)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	seen, err := receiver.PeekMessages(ctx, 5, nil)
	if err != nil {
		return err
	}
	if len(seen) != 2 {
		return fmt.Errorf("%d messages seen", len(seen))
	}
	_, err = receive(ctx, receiver, 2)
	return err
}

func schedule(ctx context.Context, client *azservicebus.Client) error {
	sender, err := client.NewSender("orders", nil)
	if err != nil {
		return err
	}
	defer sender.Close(ctx)
	numbers, err := sender.ScheduleMessages(ctx, []*azservicebus.Message{text("later")}, time.Now().Add(time.Hour), nil)
	if err != nil {
		return err
	}
	return sender.CancelScheduledMessages(ctx, numbers, nil)
}

func sessions(ctx context.Context, client *azservicebus.Client) error {
	blue := "blue"
	if err := send(ctx, client, "sessions", &azservicebus.Message{Body: []byte("x"), SessionID: &blue}); err != nil {
		return err
	}
	receiver, err := client.AcceptNextSessionForQueue(ctx, "sessions", nil)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	if err := receiver.SetSessionState(ctx, []byte("state"), nil); err != nil {
		return err
	}
	state, err := receiver.GetSessionState(ctx, nil)
	if err != nil || string(state) != "state" {
		return fmt.Errorf("the state is %q: %w", state, err)
	}
	taken, err := receiver.ReceiveMessages(ctx, 1, nil)
	if err != nil {
		return err
	}
	return errors.Join(receiver.RenewSessionLock(ctx, nil), receiver.CompleteMessage(ctx, taken[0], nil))
}

func topic(ctx context.Context, client *azservicebus.Client) error {
	if err := send(ctx, client, "events", text("t")); err != nil {
		return err
	}
	receiver, err := client.NewReceiverForSubscription("events", "all", nil)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	taken, err := receive(ctx, receiver, 1)
	if err != nil {
		return err
	}
	return receiver.CompleteMessage(ctx, taken[0], nil)
}

// Numbered messages to four sessions: each is sent until it is accepted, then said.
func stream(client *azservicebus.Client, count int) {
	var all sync.WaitGroup
	for _, session := range []string{"a", "b", "c", "d"} {
		all.Add(1)
		go func() {
			defer all.Done()
			sender, err := client.NewSender("sessions", nil)
			must(err)
			for number := 0; number < count; {
				name := fmt.Sprintf("%s-%d", session, number)
				message := &azservicebus.Message{Body: []byte(name), MessageID: &name, SessionID: &session}
				ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
				if err := sender.SendMessage(ctx, message, nil); err != nil {
					fmt.Fprintln(os.Stderr, err)
					time.Sleep(100 * time.Millisecond)
				} else {
					fmt.Printf("{\"accepted\": %q}\n", name)
					number++
				}
				stop()
			}
			must(sender.Close(context.Background()))
		}()
	}
	all.Wait()
}

func main() {
	client, err := azservicebus.NewClientFromConnectionString(os.Getenv("CONNECTION"), nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(os.Args) > 3 && os.Args[1] == "send" {
		sendCorpus(client, os.Args[2], os.Args[3])
		return
	}
	if len(os.Args) > 3 && os.Args[1] == "read" {
		count, err := strconv.Atoi(os.Args[2])
		must(err)
		readCorpus(client, count, os.Args[3:])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "stream" {
		count, err := strconv.Atoi(os.Args[2])
		must(err)
		stream(client, count)
		return
	}
	for _, one := range []scenario{
		{"send, receive and settle", settle}, {"dead letters", deadLetters},
		{"peek, receive and delete", peekAndDelete}, {"schedule and cancel", schedule},
		{"sessions", sessions}, {"topic", topic},
	} {
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
		found := map[string]any{"scenario": one.name, "error": nil}
		if err := one.run(ctx, client); err != nil {
			found["error"] = err.Error()
		}
		stop()
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
	}
}
