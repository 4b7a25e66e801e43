//! Offers as browsers write them, LF for line ends.

const FINGERPRINT: &str = "0A:1B:2C:3D:4E:5F:60:71:82:93:A4:B5:C6:D7:E8:F9:\
                           0A:1B:2C:3D:4E:5F:60:71:82:93:A4:B5:C6:D7:E8:F9";

/// What Chrome 140 writes for a microphone, a camera and a data channel, with gathered candidates.
pub(super) fn chrome() -> String {
    let transport = format!(
        "a=ice-ufrag:Kw6P\n\
         a=ice-pwd:lOpHHMsJSbCEeSCsQIeHIk4Q\n\
         a=ice-options:trickle\n\
         a=fingerprint:sha-256 {FINGERPRINT}\n\
         a=setup:actpass\n"
    );
    format!(
        "v=0\n\
         o=- 4611731400430051336 2 IN IP4 127.0.0.1\n\
         s=-\n\
         t=0 0\n\
         a=group:BUNDLE 0 1 2\n\
         a=extmap-allow-mixed\n\
         a=msid-semantic: WMS 7a08dda6-518f-4027-b707-410a6d414176\n\
         m=audio 54609 UDP/TLS/RTP/SAVPF 111 63 9 0 8 13 110 126\n\
         c=IN IP4 192.0.2.44\n\
         a=rtcp:9 IN IP4 0.0.0.0\n\
         a=candidate:1 1 udp 2113937151 5a0d3b66-14c5-4be3-8b6f-1f3f6f0f9a3b.local 54609 typ host \
         generation 0 network-cost 999\n\
         a=candidate:2 1 udp 1677729535 192.0.2.44 54609 typ srflx raddr 0.0.0.0 rport 0 \
         generation 0 network-cost 999\n\
         a=candidate:3 1 tcp 1518280447 2001:db8::9 9 typ host tcptype active generation 0\n\
         {transport}\
         a=mid:0\n\
         a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level\n\
         a=extmap:2 http://www.webrtc.org/experiments/rtp-hdrext/abs-send-time\n\
         a=extmap:3 http://www.ietf.org/id/draft-holmer-rmcat-transport-wide-cc-extensions-01\n\
         a=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid\n\
         a=sendrecv\n\
         a=msid:7a08dda6-518f-4027-b707-410a6d414176 f78dde68-7055-4e20-bb37-433803dd1ed1\n\
         a=rtcp-mux\n\
         a=rtcp-rsize\n\
         a=rtpmap:111 opus/48000/2\n\
         a=rtcp-fb:111 transport-cc\n\
         a=fmtp:111 minptime=10;useinbandfec=1\n\
         a=rtpmap:63 red/48000/2\n\
         a=fmtp:63 111/111\n\
         a=rtpmap:9 G722/8000\n\
         a=rtpmap:0 PCMU/8000\n\
         a=rtpmap:8 PCMA/8000\n\
         a=rtpmap:13 CN/8000\n\
         a=rtpmap:110 telephone-event/48000\n\
         a=rtpmap:126 telephone-event/8000\n\
         a=ssrc:2147603131 cname:TbS1Ajv9obq6/63I\n\
         a=ssrc:2147603131 msid:7a08dda6-518f-4027-b707-410a6d414176 f78dde68\n\
         m=video 9 UDP/TLS/RTP/SAVPF 96 97\n\
         c=IN IP4 0.0.0.0\n\
         {transport}\
         a=mid:1\n\
         a=sendrecv\n\
         a=rtcp-mux\n\
         a=rtpmap:96 VP8/90000\n\
         a=rtcp-fb:96 nack pli\n\
         a=rtpmap:97 rtx/90000\n\
         a=fmtp:97 apt=96\n\
         m=application 9 UDP/DTLS/SCTP webrtc-datachannel\n\
         c=IN IP4 0.0.0.0\n\
         {transport}\
         a=mid:2\n\
         a=sctp-port:5000\n\
         a=max-message-size:262144\n"
    )
}

/// What Firefox 128 writes: session-level fingerprint, mids in braces-free digits, its own PTs.
pub(super) fn firefox() -> String {
    format!(
        "v=0\n\
         o=mozilla...THIS_IS_SDPARTA-99.0 3465107434586427041 0 IN IP4 0.0.0.0\n\
         s=-\n\
         t=0 0\n\
         a=fingerprint:sha-256 {FINGERPRINT}\n\
         a=group:BUNDLE 0 1\n\
         a=ice-options:trickle\n\
         a=msid-semantic:WMS *\n\
         m=audio 9 UDP/TLS/RTP/SAVPF 109 9 0 8 101\n\
         c=IN IP4 0.0.0.0\n\
         a=sendrecv\n\
         a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level\n\
         a=extmap:2/recvonly urn:ietf:params:rtp-hdrext:csrc-audio-level\n\
         a=extmap:3 urn:ietf:params:rtp-hdrext:sdes:mid\n\
         a=fmtp:109 maxplaybackrate=48000;stereo=1;useinbandfec=1\n\
         a=fmtp:101 0-15\n\
         a=ice-pwd:fd7a3e9b1c5b2a4f6d8e0c1b3a5f7e9d\n\
         a=ice-ufrag:9c1f4a2b\n\
         a=mid:0\n\
         a=msid:{{ea3c4b02}} {{0d5c72a1}}\n\
         a=rtcp-mux\n\
         a=rtpmap:109 opus/48000/2\n\
         a=rtpmap:9 G722/8000/1\n\
         a=rtpmap:0 PCMU/8000\n\
         a=rtpmap:8 PCMA/8000\n\
         a=rtpmap:101 telephone-event/8000/1\n\
         a=setup:actpass\n\
         a=ssrc:3604822953 cname:{{6a0c2e9b}}\n\
         m=application 9 UDP/DTLS/SCTP webrtc-datachannel\n\
         c=IN IP4 0.0.0.0\n\
         a=sendrecv\n\
         a=ice-pwd:fd7a3e9b1c5b2a4f6d8e0c1b3a5f7e9d\n\
         a=ice-ufrag:9c1f4a2b\n\
         a=mid:1\n\
         a=setup:actpass\n\
         a=sctp-port:5000\n\
         a=max-message-size:1073741823\n"
    )
}
