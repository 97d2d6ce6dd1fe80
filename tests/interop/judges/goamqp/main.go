// Scenarios of go-amqp, without any library of Azure on top. ENDPOINT and CONNECTION say where; prints a JSON line each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

const sessionFilter = "com.microsoft:session-filter"

type scenario struct {
	name string
	run  func(context.Context, *amqp.Session) error
}

// field gives one part of the connection string.
func field(name string) string {
	for _, part := range strings.Split(os.Getenv("CONNECTION"), ";") {
		if key, value, found := strings.Cut(part, "="); found && key == name {
			return value
		}
	}
	return ""
}

func connect(ctx context.Context) (*amqp.Conn, error) {
	address := strings.Replace(os.Getenv("ENDPOINT"), "sb://", "amqp://", 1)
	plain := amqp.SASLTypePlain(field("SharedAccessKeyName"), field("SharedAccessKey"))
	return amqp.Dial(ctx, address, &amqp.ConnOptions{SASLType: plain})
}

func send(ctx context.Context, session *amqp.Session, entity string, messages ...*amqp.Message) error {
	sender, err := session.NewSender(ctx, entity, nil)
	if err != nil {
		return err
	}
	for _, message := range messages {
		if err := sender.Send(ctx, message, nil); err != nil {
			return err
		}
	}
	return sender.Close(ctx)
}

func text(body string) *amqp.Message { return amqp.NewMessage([]byte(body)) }

// next receives one message and says whether it is the one that is expected.
func next(ctx context.Context, receiver *amqp.Receiver, body string, deliveries uint32) (*amqp.Message, error) {
	message, err := receiver.Receive(ctx, nil)
	if err != nil {
		return nil, err
	}
	if string(message.GetData()) != body || message.Header.DeliveryCount != deliveries {
		return nil, fmt.Errorf("%q came, delivered %d times before", message.GetData(), message.Header.DeliveryCount)
	}
	return message, nil
}

func settle(ctx context.Context, session *amqp.Session) error {
	if err := send(ctx, session, "orders", text("work")); err != nil {
		return err
	}
	receiver, err := session.NewReceiver(ctx, "orders", &amqp.ReceiverOptions{Credit: 1})
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	message, err := next(ctx, receiver, "work", 0)
	if err != nil {
		return err
	}
	if err := receiver.ReleaseMessage(ctx, message); err != nil {
		return err
	}
	if message, err = next(ctx, receiver, "work", 0); err != nil {
		return err
	}
	if err := receiver.ModifyMessage(ctx, message, &amqp.ModifyMessageOptions{DeliveryFailed: true}); err != nil {
		return err
	}
	if message, err = next(ctx, receiver, "work", 1); err != nil {
		return err
	}
	return receiver.RejectMessage(ctx, message, nil)
}

func deadLetters(ctx context.Context, session *amqp.Session) error {
	receiver, err := session.NewReceiver(ctx, "orders/$DeadLetterQueue", &amqp.ReceiverOptions{Credit: 1})
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	message, err := receiver.Receive(ctx, nil)
	if err != nil {
		return err
	}
	return receiver.AcceptMessage(ctx, message)
}

func topic(ctx context.Context, session *amqp.Session) error {
	if err := send(ctx, session, "events", text("t")); err != nil {
		return err
	}
	receiver, err := session.NewReceiver(ctx, "events/Subscriptions/all", nil)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	message, err := next(ctx, receiver, "t", 0)
	if err != nil {
		return err
	}
	return receiver.AcceptMessage(ctx, message)
}

func inSession(ctx context.Context, session *amqp.Session) error {
	blue := "blue"
	message := text("x")
	message.Properties = &amqp.MessageProperties{GroupID: &blue}
	if err := send(ctx, session, "sessions", message); err != nil {
		return err
	}
	options := &amqp.ReceiverOptions{Credit: 1, Filters: []amqp.LinkFilter{amqp.NewLinkFilter(sessionFilter, 0, blue)}}
	receiver, err := session.NewReceiver(ctx, "sessions", options)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	if held := receiver.LinkSourceFilterValue(sessionFilter); held != blue {
		return fmt.Errorf("the session is %v", held)
	}
	if _, err = session.NewReceiver(ctx, "sessions", options); err == nil {
		return errors.New("a session that is held was given out again")
	}
	var refused *amqp.Error
	if !errors.As(err, &refused) || refused.Condition != "com.microsoft:session-cannot-be-locked" {
		return fmt.Errorf("a session that is held is refused with %w", err)
	}
	if message, err = next(ctx, receiver, "x", 0); err != nil {
		return err
	}
	return receiver.AcceptMessage(ctx, message)
}

func refusals(ctx context.Context, session *amqp.Session) error {
	var refused *amqp.Error
	_, err := session.NewReceiver(ctx, "nothing", nil)
	if !errors.As(err, &refused) || refused.Condition != amqp.ErrCondNotFound {
		return fmt.Errorf("a queue that is not there: %w", err)
	}
	_, err = session.NewSender(ctx, "nothing", nil)
	if !errors.As(err, &refused) || refused.Condition != amqp.ErrCondNotFound {
		return fmt.Errorf("to a queue that is not there: %w", err)
	}
	return nil
}

func large(ctx context.Context, session *amqp.Session) error {
	body := strings.Repeat("x", 200_000)
	if err := send(ctx, session, "orders", text(body)); err != nil {
		return err
	}
	receiver, err := session.NewReceiver(ctx, "orders", nil)
	if err != nil {
		return err
	}
	defer receiver.Close(ctx)
	message, err := next(ctx, receiver, body, 0)
	if err != nil {
		return err
	}
	return receiver.AcceptMessage(ctx, message)
}

func main() {
	for _, one := range []scenario{
		{"send, receive and settle", settle}, {"dead letters", deadLetters}, {"topic", topic},
		{"sessions", inSession}, {"refused links", refusals}, {"many frames", large},
	} {
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
		found := map[string]any{"scenario": one.name, "error": nil}
		if err := connected(ctx, one); err != nil {
			found["error"] = err.Error()
		}
		stop()
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
	}
}

func connected(ctx context.Context, one scenario) error {
	connection, err := connect(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	session, err := connection.NewSession(ctx, nil)
	if err != nil {
		return err
	}
	return one.run(ctx, session)
}
