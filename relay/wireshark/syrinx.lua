-- Wireshark dissector for the inner leg: bundles, their records, and what is in them.
--
-- Install: copy to ~/.local/lib/wireshark/plugins/, or run
--   wireshark -X lua_script:syrinx.lua
-- A UDP datagram whose first byte is 0x0c and whose version fits is taken for a bundle, on any
-- port. Payloads go on to the dissectors of STUN, DTLS and RTP. The format is drawn in
-- shared/manual/wire.md; the codec is shared/src/wire/encap.rs.

local syrinx = Proto("syrinx", "Syrinx inner leg")

local PREAMBLE_BYTES, RECORD_HEADER_BYTES = 8, 40
local DIRECTIONS = { [0] = "to transceiver", [1] = "to client", [2] = "control" }
local CONTROLS = { [1] = "flow closed" }

local f = syrinx.fields
f.version = ProtoField.uint8("syrinx.version", "Version", base.DEC, nil, 0xf0)
f.destination_shard = ProtoField.uint8("syrinx.destination_shard", "Destination shard")
f.source_shard = ProtoField.uint8("syrinx.source_shard", "Source shard")
f.sender = ProtoField.uint16("syrinx.sender", "Sender")
f.count = ProtoField.uint8("syrinx.count", "Records")
f.padding = ProtoField.bytes("syrinx.padding", "Padding")
f.record = ProtoField.none("syrinx.record", "Record")
f.length = ProtoField.uint16("syrinx.record.length", "Payload length")
f.direction = ProtoField.uint8("syrinx.record.direction", "Direction", base.DEC, DIRECTIONS, 0x03)
f.ecn = ProtoField.uint8("syrinx.record.ecn", "ECN", base.DEC, nil, 0x0c)
f.tcp = ProtoField.bool("syrinx.record.tcp", "TCP", 8, nil, 0x10)
f.dscp = ProtoField.uint8("syrinx.record.dscp", "DSCP")
f.endpoint = ProtoField.uint8("syrinx.record.endpoint", "Local endpoint")
f.client_port = ProtoField.uint16("syrinx.record.client_port", "Client port")
f.client_ipv4 = ProtoField.ipv4("syrinx.record.client_ipv4", "Client address")
f.client_ipv6 = ProtoField.ipv6("syrinx.record.client_ipv6", "Client address")
f.transceiver = ProtoField.uint16("syrinx.record.transceiver", "Transceiver")
f.shard = ProtoField.uint8("syrinx.record.shard", "Shard")
f.slot = ProtoField.uint24("syrinx.record.slot", "Slot")
f.generation = ProtoField.uint16("syrinx.record.generation", "Generation")
f.cookie = ProtoField.bytes("syrinx.record.cookie", "Cookie")
f.control = ProtoField.uint8("syrinx.record.control", "Control", base.DEC, CONTROLS)

local e = syrinx.experts
e.truncated = ProtoExpert.new(
    "syrinx.truncated", "A record runs past the end of the bundle",
    expert.group.MALFORMED, expert.severity.ERROR)

-- RFC 7983 and 9443: the first byte tells the protocol.
local function payload_dissector(first)
    if first <= 3 then return Dissector.get("stun-udp") end
    if first >= 20 and first <= 63 then return Dissector.get("dtls") end
    if first >= 128 and first <= 191 then return Dissector.get("rtp") end
    return Dissector.get("data")
end

local function client_of(record)
    local mapped = record(8, 10):bytes() == ByteArray.new("00000000000000000000")
        and record(18, 2):uint() == 0xffff
    if mapped then return record(20, 4), f.client_ipv4, tostring(record(20, 4):ipv4()) end
    return record(8, 16), f.client_ipv6, "[" .. tostring(record(8, 16):ipv6()) .. "]"
end

local function dissect_header(record, tree)
    tree:add(f.length, record(0, 2))
    tree:add(f.direction, record(2, 1))
    tree:add(f.ecn, record(2, 1))
    tree:add(f.tcp, record(2, 1))
    tree:add(f.dscp, record(3, 1))
    tree:add(f.endpoint, record(4, 1))
    tree:add(f.client_port, record(6, 2))
    local address, field, text = client_of(record)
    tree:add(field, address)
    tree:add(f.transceiver, record(24, 2))
    tree:add(f.shard, record(26, 1))
    tree:add(f.slot, record(27, 3))
    tree:add(f.generation, record(30, 2))
    tree:add(f.cookie, record(32, 8))
    local session = string.format("%d/%d/%d.%d", record(24, 2):uint(), record(26, 1):uint(),
        record(27, 3):uint(), record(30, 2):uint())
    return string.format("%s:%d, session %s", text, record(6, 2):uint(), session)
end

-- Dissects the record at `offset`, and returns where the next one starts; nil when it is cut off.
local function dissect_record(buffer, offset, pinfo, tree)
    if buffer:len() - offset < RECORD_HEADER_BYTES then return nil end
    local payload_bytes = buffer(offset, 2):uint()
    local record_bytes = RECORD_HEADER_BYTES + payload_bytes
    if buffer:len() - offset < record_bytes then return nil end

    local record = buffer(offset, record_bytes)
    local branch = tree:add(f.record, record)
    local direction = bit.band(record(2, 1):uint(), 3)
    local who = dissect_header(record, branch)
    branch:set_text(string.format("Record %s, %s, %d bytes",
        DIRECTIONS[direction] or "of unknown direction", who, payload_bytes))
    if payload_bytes > 0 then
        local payload = buffer(offset + RECORD_HEADER_BYTES, payload_bytes)
        if direction == 2 then
            branch:add(f.control, payload(0, 1))
        else
            payload_dissector(payload(0, 1):uint()):call(payload:tvb(), pinfo, branch)
        end
    end
    return offset + record_bytes
end

function syrinx.dissector(buffer, pinfo, tree)
    local count = buffer(6, 1):uint()
    local branch = tree:add(syrinx, buffer())
    branch:add(f.version, buffer(1, 1))
    branch:add(f.destination_shard, buffer(2, 1))
    branch:add(f.source_shard, buffer(3, 1))
    branch:add(f.sender, buffer(4, 2))
    branch:add(f.count, buffer(6, 1))

    local offset = PREAMBLE_BYTES
    for _ = 1, count do
        local next_offset = dissect_record(buffer, offset, pinfo, branch)
        if next_offset == nil then
            branch:add_proto_expert_info(e.truncated)
            break
        end
        offset = next_offset
    end
    if offset < buffer:len() then branch:add(f.padding, buffer(offset)) end
    pinfo.cols.protocol = "Syrinx"
    pinfo.cols.info = string.format("shard %d to shard %d, %d records",
        buffer(3, 1):uint(), buffer(2, 1):uint(), count)
end

local function heuristic(buffer, pinfo, tree)
    if buffer:len() < PREAMBLE_BYTES then return false end
    if buffer(0, 1):uint() ~= 0x0c or buffer(1, 1):uint() ~= 0x10 or buffer(7, 1):uint() ~= 0 then
        return false
    end
    syrinx.dissector(buffer, pinfo, tree)
    return true
end

syrinx:register_heuristic("udp", heuristic)
