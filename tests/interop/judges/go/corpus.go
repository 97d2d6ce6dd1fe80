// The typed corpus with azservicebus: `judge send QUEUE FILE` and `judge read COUNT QUEUE...`.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"sort"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
)

const patience = 20 * time.Second

type typed [2]json.RawMessage

type described struct {
	ID         string           `json:"id"`
	Data       *string          `json:"data"`
	Value      *typed           `json:"value"`
	Properties map[string]typed `json:"properties"`
	Fields     map[string]string
}

type cannot string

func (kind cannot) Error() string { return string(kind) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string, size int) any {
	bits, err := strconv.ParseUint(text, 16, size)
	must(err)
	if size == 32 {
		return math.Float32frombits(uint32(bits))
	}
	return math.Float64frombits(bits)
}

func build(value typed) (any, error) {
	var kind, text string
	must(json.Unmarshal(value[0], &kind))
	switch kind {
	case "list":
		var items []typed
		must(json.Unmarshal(value[1], &items))
		made := []any{}
		for _, item := range items {
			one, err := build(item)
			if err != nil {
				return nil, err
			}
			made = append(made, one)
		}
		return made, nil
	case "map":
		var pairs [][2]json.RawMessage
		must(json.Unmarshal(value[1], &pairs))
		made := map[string]any{}
		for _, pair := range pairs {
			var key string
			var item typed
			must(json.Unmarshal(pair[0], &key))
			must(json.Unmarshal(pair[1], &item))
			one, err := build(item)
			if err != nil {
				return nil, err
			}
			made[key] = one
		}
		return made, nil
	}
	must(json.Unmarshal(value[1], &text))
	signed := func(size int) int64 {
		parsed, err := strconv.ParseInt(text, 10, size)
		must(err)
		return parsed
	}
	unsigned := func(size int) uint64 {
		parsed, err := strconv.ParseUint(text, 10, size)
		must(err)
		return parsed
	}
	switch kind {
	case "null":
		return nil, nil
	case "boolean":
		return text == "true", nil
	case "ubyte":
		return uint8(unsigned(8)), nil
	case "ushort":
		return uint16(unsigned(16)), nil
	case "uint":
		return uint32(unsigned(32)), nil
	case "ulong":
		return unsigned(64), nil
	case "byte":
		return int8(signed(8)), nil
	case "short":
		return int16(signed(16)), nil
	case "int":
		return int32(signed(32)), nil
	case "long":
		return signed(64), nil
	case "float":
		return number(text, 32), nil
	case "double":
		return number(text, 64), nil
	case "timestamp":
		return time.UnixMilli(signed(64)).UTC(), nil
	case "string":
		return text, nil
	case "symbol":
		return amqp.Symbol(text), nil
	case "binary":
		made, err := hex.DecodeString(text)
		return made, err
	case "uuid":
		var made amqp.UUID
		digits := ""
		for _, sign := range text {
			if sign != '-' {
				digits += string(sign)
			}
		}
		_, err := hex.Decode(made[:], []byte(digits))
		return made, err
	}
	return nil, cannot(kind)
}

func annotated(one described) (*azservicebus.AMQPAnnotatedMessage, error) {
	made := &azservicebus.AMQPAnnotatedMessage{
		ApplicationProperties: map[string]any{},
		Properties:            &azservicebus.AMQPAnnotatedMessageProperties{MessageID: one.ID},
	}
	if one.Data != nil {
		data, err := hex.DecodeString(*one.Data)
		must(err)
		made.Body.Data = [][]byte{data}
	} else {
		value, err := build(*one.Value)
		if err != nil {
			return nil, err
		}
		made.Body.Value = value
	}
	for name, value := range one.Properties {
		property, err := build(value)
		if err != nil {
			return nil, err
		}
		made.ApplicationProperties[name] = property
	}
	for name, text := range one.Fields {
		switch name {
		case "to":
			made.Properties.To = &text
		case "subject":
			made.Properties.Subject = &text
		case "replyTo":
			made.Properties.ReplyTo = &text
		case "correlationId":
			made.Properties.CorrelationID = text
		case "contentType":
			made.Properties.ContentType = &text
		}
	}
	return made, nil
}

func view(value any) any {
	switch one := value.(type) {
	case nil:
		return nil
	case []byte:
		return []any{"bytes", hex.EncodeToString(one)}
	case float32:
		return []any{"float32", math.Float32bits(one)}
	case float64:
		return []any{"float64", strconv.FormatUint(math.Float64bits(one), 16)}
	case time.Time:
		return []any{"time", one.UnixMilli()}
	case *string:
		if one == nil {
			return nil
		}
		return *one
	case []any:
		made := []any{}
		for _, item := range one {
			made = append(made, view(item))
		}
		return made
	}
	if reflect.ValueOf(value).Kind() == reflect.Map {
		made := []any{}
		keys := reflect.ValueOf(value).MapKeys()
		sort.Slice(keys, func(a, b int) bool { return fmt.Sprint(keys[a]) < fmt.Sprint(keys[b]) })
		for _, key := range keys {
			made = append(made, []any{fmt.Sprint(key), view(reflect.ValueOf(value).MapIndex(key).Interface())})
		}
		return made
	}
	return []any{fmt.Sprintf("%T", value), fmt.Sprint(value)}
}

func seen(raw *azservicebus.AMQPAnnotatedMessage) any {
	fields := raw.Properties
	parts := []any{view(fields.To), view(fields.Subject), view(fields.ReplyTo), view(fields.CorrelationID), view(fields.ContentType)}
	data := []any{}
	for _, part := range raw.Body.Data {
		data = append(data, view(part))
	}
	return []any{data, view(raw.Body.Value), view(raw.ApplicationProperties), parts}
}

func printed(line map[string]any) {
	text, err := json.Marshal(line)
	must(err)
	fmt.Println(string(text))
}

func sendCorpus(client *azservicebus.Client, queue string, path string) {
	text, err := os.ReadFile(path)
	must(err)
	var all []described
	must(json.Unmarshal(text, &all))
	sender, err := client.NewSender(queue, nil)
	must(err)
	defer sender.Close(context.Background())
	for _, one := range all {
		message, err := annotated(one)
		if err != nil {
			printed(map[string]any{"id": one.ID, "cannot": err.Error()})
			continue
		}
		must(sender.SendAMQPAnnotatedMessage(context.Background(), message, nil))
	}
}

func readCorpus(client *azservicebus.Client, count int, queues []string) {
	for _, queue := range queues {
		options := &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}
		receiver, err := client.NewReceiverForQueue(queue, options)
		must(err)
		for left := count; left > 0; {
			ctx, stop := context.WithTimeout(context.Background(), patience)
			taken, err := receiver.ReceiveMessages(ctx, left, nil)
			stop()
			if err != nil {
				break
			}
			left -= len(taken)
			for _, one := range taken {
				printed(map[string]any{"queue": queue, "id": one.MessageID, "view": seen(one.RawAMQPMessage)})
			}
		}
		receiver.Close(context.Background())
	}
}
