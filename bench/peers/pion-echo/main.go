// Command pion-echo is the rival of the transceiver: a lean server on Pion that sends every
// caller's audio and data channel messages back.
//
// It is what a careful user of Pion would write for this task alone: one UDP port for all calls,
// ICE lite, Opus only, RTCP reports and nothing else on the packets' way, one goroutine a track.
// An offer comes by POST, the answer goes back with 201 and a Location to DELETE, so the same
// client calls this server and ours.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/pion/interceptor"
	"github.com/pion/webrtc/v3"
)

const (
	// What the kernel may hold for the one socket, as our transceiver asks for.
	socketBufferBytes = 4 << 20
	// No offer is longer.
	offerBytesMax = 256 << 10
	// Opus packets of 20 ms are a tenth of this.
	packetBytesMax = 1500
)

// server holds the open calls.
type server struct {
	api   *webrtc.API
	mutex sync.Mutex
	calls map[uint64]*webrtc.PeerConnection
	next  uint64
}

func main() {
	media := flag.String("media", "127.0.0.1:3579", "UDP address of all calls, IPv4")
	listen := flag.String("http", "127.0.0.1:3580", "TCP address that takes offers")
	version := flag.Bool("version", false, "say which Pion and Go built this, and end")
	flag.Parse()
	if *version {
		fmt.Println(pionVersion, runtime.Version())
		return
	}
	api, err := newAPI(*media)
	if err != nil {
		log.Fatalf("-media %s: %v", *media, err)
	}
	listener, err := net.Listen("tcp4", *listen)
	if err != nil {
		log.Fatalf("-http %s: %v", *listen, err)
	}
	s := &server{api: api, calls: make(map[uint64]*webrtc.PeerConnection)}
	mux := http.NewServeMux()
	mux.HandleFunc("/calls", s.open)
	mux.HandleFunc("/calls/", s.hangUp)
	go func() { log.Fatal(http.Serve(listener, mux)) }()
	fmt.Println("ready", *listen)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}

// pionVersion is set by the build.
var pionVersion = "unknown"

// newAPI prepares Pion: one socket for all calls, Opus, RTCP reports.
func newAPI(media string) (*webrtc.API, error) {
	at, err := net.ResolveUDPAddr("udp4", media)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenUDP("udp4", at)
	if err != nil {
		return nil, err
	}
	if err := socket.SetReadBuffer(socketBufferBytes); err != nil {
		return nil, err
	}
	if err := socket.SetWriteBuffer(socketBufferBytes); err != nil {
		return nil, err
	}
	engine := &webrtc.MediaEngine{}
	opus := webrtc.RTPCodecParameters{
		RTPCodecCapability: webrtc.RTPCodecCapability{
			MimeType: webrtc.MimeTypeOpus, ClockRate: 48000, Channels: 2,
		},
		PayloadType: 111,
	}
	if err := engine.RegisterCodec(opus, webrtc.RTPCodecTypeAudio); err != nil {
		return nil, err
	}
	registry := &interceptor.Registry{}
	if err := webrtc.ConfigureRTCPReports(registry); err != nil {
		return nil, err
	}
	settings := webrtc.SettingEngine{}
	settings.SetLite(true)
	settings.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	settings.SetICEUDPMux(webrtc.NewICEUDPMux(nil, socket))
	return webrtc.NewAPI(webrtc.WithMediaEngine(engine),
		webrtc.WithInterceptorRegistry(registry), webrtc.WithSettingEngine(settings)), nil
}

// open answers an offer.
func (s *server) open(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "POST an SDP offer", http.StatusMethodNotAllowed)
		return
	}
	offer, err := io.ReadAll(http.MaxBytesReader(w, r.Body, offerBytesMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, id, err := s.answer(string(offer))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Location", "/calls/"+strconv.FormatUint(id, 10))
	w.Header().Set("Content-Type", "application/sdp")
	w.WriteHeader(http.StatusCreated)
	// A client that is gone needs no answer.
	_, _ = io.WriteString(w, answer)
}

func (s *server) answer(offer string) (string, uint64, error) {
	call, err := s.api.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return "", 0, err
	}
	id := s.keep(call)
	answer, err := negotiate(call, offer)
	if err != nil {
		s.end(id)
		return "", 0, err
	}
	call.OnConnectionStateChange(func(state webrtc.PeerConnectionState) {
		if state == webrtc.PeerConnectionStateFailed || state == webrtc.PeerConnectionStateClosed {
			s.end(id)
		}
	})
	return answer, id, nil
}

func negotiate(call *webrtc.PeerConnection, offer string) (string, error) {
	back, err := webrtc.NewTrackLocalStaticRTP(
		webrtc.RTPCodecCapability{MimeType: webrtc.MimeTypeOpus}, "audio", "echo")
	if err != nil {
		return "", err
	}
	sender, err := call.AddTrack(back)
	if err != nil {
		return "", err
	}
	go drain(sender)
	call.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { echo(track, back) })
	call.OnDataChannel(func(channel *webrtc.DataChannel) {
		channel.OnMessage(func(message webrtc.DataChannelMessage) {
			// A channel that has closed meanwhile has nobody to tell.
			if message.IsString {
				_ = channel.SendText(string(message.Data))
			} else {
				_ = channel.Send(message.Data)
			}
		})
	})
	description := webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer}
	if err := call.SetRemoteDescription(description); err != nil {
		return "", err
	}
	answer, err := call.CreateAnswer(nil)
	if err != nil {
		return "", err
	}
	gathered := webrtc.GatheringCompletePromise(call)
	if err := call.SetLocalDescription(answer); err != nil {
		return "", err
	}
	<-gathered
	return call.LocalDescription().SDP, nil
}

// drain reads RTCP, which the interceptors see only when somebody reads it.
func drain(sender *webrtc.RTPSender) {
	buffer := make([]byte, packetBytesMax)
	for {
		if _, _, err := sender.Read(buffer); err != nil {
			return
		}
	}
}

// echo sends a track's packets back as they come, until its call ends.
func echo(track *webrtc.TrackRemote, back *webrtc.TrackLocalStaticRTP) {
	buffer := make([]byte, packetBytesMax)
	for {
		length, _, err := track.Read(buffer)
		if err != nil {
			return
		}
		if _, err := back.Write(buffer[:length]); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return
		}
	}
}

// hangUp ends a call by DELETE of its Location.
func (s *server) hangUp(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(strings.TrimPrefix(r.URL.Path, "/calls/"), 10, 64)
	if err != nil || r.Method != http.MethodDelete {
		http.Error(w, "DELETE a call's Location", http.StatusBadRequest)
		return
	}
	s.end(id)
	w.WriteHeader(http.StatusNoContent)
}

func (s *server) keep(call *webrtc.PeerConnection) uint64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.next++
	s.calls[s.next] = call
	return s.next
}

func (s *server) end(id uint64) {
	s.mutex.Lock()
	call := s.calls[id]
	delete(s.calls, id)
	s.mutex.Unlock()
	if call != nil {
		// Closing twice or late harms nobody.
		_ = call.Close()
	}
}
