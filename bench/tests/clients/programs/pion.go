// One call of Pion: sends the given payloads as audio, keeps what comes back, exchanges an event,
// closes. What it saw goes to standard output as one JSON object; what that should be is the
// test's to say.
//
// Built by `prepare` against Debian's packages.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pion/webrtc/v3"
	"github.com/pion/webrtc/v3/pkg/media"
)

const (
	stepWait   = 30 * time.Second
	packetTime = 20 * time.Millisecond
	// What is on its way when the last payload was sent.
	tail = time.Second
)

var (
	calls    = flag.String("calls", "", "URL that takes the offer")
	event    = flag.String("event", "", "text to send on the data channel")
	frames   = flag.String("frames", "", "file of payloads to send, one in hexadecimal a line")
	returned = flag.String("returned", "", "file for the payloads that come back")
)

// The version of Debian's package, told by the linker.
var version string

type report struct {
	Client   string   `json:"client"`
	Version  string   `json:"version"`
	Status   int      `json:"status"`
	Location string   `json:"location"`
	Greeting string   `json:"greeting"`
	Echo     string   `json:"echo"`
	States   []string `json:"states"`
}

// One call, as far as its callbacks see it.
type call struct {
	mutex    sync.Mutex
	states   []string
	returned []string
	messages chan string
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	result, err := run()
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
}

func run() (*report, error) {
	payloads, err := readPayloads(*frames)
	if err != nil {
		return nil, err
	}
	connection, err := webrtc.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	seen := &call{messages: make(chan string, 16)}
	connection.OnConnectionStateChange(seen.changed)
	connection.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) {
		seen.hear(track)
	})
	voice, err := webrtc.NewTrackLocalStaticSample(
		webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2},
		"voice", "caller")
	if err != nil {
		return nil, err
	}
	sender, err := connection.AddTrack(voice)
	if err != nil {
		return nil, err
	}
	go drain(sender)
	channel, err := connection.CreateDataChannel("oai-events", nil)
	if err != nil {
		return nil, err
	}
	channel.OnMessage(func(message webrtc.DataChannelMessage) {
		seen.messages <- string(message.Data)
	})

	result := &report{Client: "Pion", Version: version}
	if err := negotiate(connection, result); err != nil {
		return nil, err
	}
	if result.Greeting, err = seen.message(); err != nil {
		return nil, err
	}
	if err := channel.SendText(*event); err != nil {
		return nil, err
	}
	if result.Echo, err = seen.message(); err != nil {
		return nil, err
	}
	if err := speak(voice, payloads); err != nil {
		return nil, err
	}
	time.Sleep(tail)
	if err := connection.Close(); err != nil {
		return nil, err
	}
	seen.mutex.Lock()
	defer seen.mutex.Unlock()
	result.States = seen.states
	heard := strings.Join(seen.returned, "\n")
	return result, os.WriteFile(*returned, []byte(heard), 0o600)
}

func readPayloads(name string) ([][]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var payloads [][]byte
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		payload, err := hex.DecodeString(lines.Text())
		if err != nil {
			return nil, err
		}
		payloads = append(payloads, payload)
	}
	return payloads, lines.Err()
}

// Posts the offer as it is before any candidate was gathered, and takes the answer.
func negotiate(connection *webrtc.PeerConnection, result *report) error {
	offer, err := connection.CreateOffer(nil)
	if err != nil {
		return err
	}
	if err := connection.SetLocalDescription(offer); err != nil {
		return err
	}
	client := http.Client{Timeout: stepWait}
	answer, err := client.Post(*calls, "application/sdp", strings.NewReader(offer.SDP))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", answer.Status, body)
	}
	result.Status = answer.StatusCode
	result.Location = answer.Header.Get("Location")
	return connection.SetRemoteDescription(webrtc.SessionDescription{
		Type: webrtc.SDPTypeAnswer, SDP: string(body),
	})
}

// Interceptors see RTCP only while somebody reads it.
func drain(sender *webrtc.RTPSender) {
	buffer := make([]byte, 1500)
	for {
		if _, _, err := sender.Read(buffer); err != nil {
			return
		}
	}
}

func speak(voice *webrtc.TrackLocalStaticSample, payloads [][]byte) error {
	ticks := time.NewTicker(packetTime)
	defer ticks.Stop()
	for _, payload := range payloads {
		if err := voice.WriteSample(media.Sample{Data: payload, Duration: packetTime}); err != nil {
			return err
		}
		<-ticks.C
	}
	return nil
}

func (seen *call) changed(state webrtc.PeerConnectionState) {
	seen.mutex.Lock()
	defer seen.mutex.Unlock()
	seen.states = append(seen.states, state.String())
}

func (seen *call) hear(track *webrtc.TrackRemote) {
	for {
		packet, _, err := track.ReadRTP()
		if err != nil {
			return
		}
		seen.mutex.Lock()
		seen.returned = append(seen.returned, hex.EncodeToString(packet.Payload))
		seen.mutex.Unlock()
	}
}

func (seen *call) message() (string, error) {
	select {
	case text := <-seen.messages:
		return text, nil
	case <-time.After(stepWait):
		return "", errors.New("no message came")
	}
}
