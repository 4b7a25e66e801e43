//! Janus' EchoTest, configured for nothing but that: one plugin, one transport, no recording.
//!
//! Janus offers no loopback addresses, so its callers reach it on another address of this machine;
//! their packets stay on it all the same. What Janus sends, libnice sends out by that address'
//! interface (`IP_UNICAST_IF`), from where nothing reaches loopback, so its callers have that
//! address themselves, with a port each. Its own default gives each call a thread. `event_loops`
//! shares one among them, which its manual recommends for many calls: that is what is measured.

mod signals;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::{Peer, PeerError, own_address};
use crate::calls::sources::Sources;
use crate::process::free_port;

pub use signals::Signals;

/// Ports of calls. Each takes its own; tests and daemons take theirs from below.
const MEDIA_PORTS: &str = "32768-60999";

/// Plugins that Debian ships and that this use does not need: each would start threads.
const OTHER_PLUGINS: [&str; 11] = [
    "audiobridge",
    "duktape",
    "lua",
    "nosip",
    "recordplay",
    "sip",
    "streaming",
    "textroom",
    "videocall",
    "videoroom",
    "voicemail",
];
const OTHER_TRANSPORTS: [&str; 5] = ["mqtt", "nanomsg", "pfunix", "rabbitmq", "websockets"];

/// Starts `program` on `core`, its files in `folder`. It takes calls at [`Peer::url`].
///
/// # Errors
/// It is not installed, ends by itself, or this machine has no address for it.
pub fn start(program: &Path, core: usize, folder: &Path) -> Result<Peer, PeerError> {
    let address = own_address()?;
    let http = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = folder.join("janus.jcfg");
    std::fs::write(&config, general(folder, address))?;
    std::fs::write(folder.join("janus.transport.http.jcfg"), transport(http))?;
    let arguments = [
        "--configs-folder".to_owned(),
        folder.display().to_string(),
        "--config".to_owned(),
        config.display().to_string(),
    ];
    let ready = (http, "/janus/info", 200);
    let process = super::start("janus", program, &arguments, core, folder, ready)?;
    Ok(Peer {
        process,
        url: format!("http://{http}/janus"),
        sources: Some(Sources::one(address)),
    })
}

/// The version of Janus.
///
/// # Errors
/// It is not installed.
pub fn version(program: &Path) -> Result<String, PeerError> {
    super::version(program, "--version")
}

fn general(folder: &Path, address: IpAddr) -> String {
    let libraries = |names: &[&str]| {
        let names = names.iter().map(|name| format!("libjanus_{name}.so"));
        names.collect::<Vec<_>>().join(",")
    };
    format!(
        r#"general: {{
    configs_folder = "{folder}"
    debug_level = 2
    debug_colors = false
    session_timeout = 0
    event_loops = 1
}}
media: {{
    ipv6 = false
    rtp_port_range = "{MEDIA_PORTS}"
}}
nat: {{
    ice_lite = true
    ice_enforce_list = "{address}"
}}
plugins: {{ disable = "{plugins}" }}
transports: {{ disable = "{transports}" }}
"#,
        folder = folder.display(),
        plugins = libraries(&OTHER_PLUGINS),
        transports = libraries(&OTHER_TRANSPORTS),
    )
}

fn transport(http: SocketAddr) -> String {
    format!(
        r#"general: {{
    json = "compact"
    base_path = "/janus"
    http = true
    ip = "{ip}"
    port = {port}
    https = false
}}
admin: {{
    admin_http = false
    admin_https = false
}}
"#,
        ip = http.ip(),
        port = http.port(),
    )
}
