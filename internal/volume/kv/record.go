package kv

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/hbmfs/hbmfs/control"
)

// recordSize divides a disk's sector, so that a record is never torn between two.
const recordSize = 128

// A record, little-endian: CRC-32C of all that follows, begun with the slot's number and the namespace's (u32); version (u8), length of the key
// (u8), flags (u16: 1 the checksum is known); length of the block, its CRC-32C (u32 each); number that rises with each record (u64); key; zeros.
const (
	recordVersion = 1
	recordKey     = 24
	recordHasCRC  = 1
)

// record says which block is in a slot.
type record struct {
	key    []byte
	length uint32
	crc    uint32
	hasCRC bool
	serial uint64
}

// castagnoli is the table of CRC-32C.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// seal is the checksum of a record that lies in a slot of a namespace.
func seal(id uint64, n uint32, p []byte) uint32 {
	var place [12]byte
	binary.LittleEndian.PutUint64(place[:], id)
	binary.LittleEndian.PutUint32(place[8:], n)
	return crc32.Update(crc32.Update(0, castagnoli(), place[:]), castagnoli(), p[4:recordSize])
}

// encode writes the record of a slot.
func (r *record) encode(p []byte, id uint64, n uint32) {
	clear(p[:recordSize])
	p[4], p[5] = recordVersion, byte(len(r.key))
	if r.hasCRC {
		p[6] = recordHasCRC
	}
	binary.LittleEndian.PutUint32(p[8:], r.length)
	binary.LittleEndian.PutUint32(p[12:], r.crc)
	binary.LittleEndian.PutUint64(p[16:], r.serial)
	copy(p[recordKey:], r.key)
	binary.LittleEndian.PutUint32(p, seal(id, n, p))
}

// isEmpty tells whether a record says that its slot has nothing.
func isEmpty(p []byte) bool {
	for i := 0; i < recordSize; i += 8 {
		if binary.LittleEndian.Uint64(p[i:]) != 0 {
			return false
		}
	}
	return true
}

// parseRecord reads the record of a slot, which is part of p. ok is false where it is not whole, or another slot's.
func parseRecord(p []byte, id uint64, n uint32, most int64) (r record, ok bool) {
	if len(p) < recordSize || binary.LittleEndian.Uint32(p) != seal(id, n, p) {
		return r, false
	}
	length := int(p[5])
	flags := binary.LittleEndian.Uint16(p[6:])
	if p[4] != recordVersion || length < 1 || length > control.MaxKVKey || flags&^recordHasCRC != 0 {
		return r, false
	}
	r = record{
		key: p[recordKey : recordKey+length], length: binary.LittleEndian.Uint32(p[8:]), crc: binary.LittleEndian.Uint32(p[12:]),
		hasCRC: flags&recordHasCRC != 0, serial: binary.LittleEndian.Uint64(p[16:]),
	}
	for _, b := range p[recordKey+length : recordSize] {
		if b != 0 {
			return r, false
		}
	}
	return r, int64(r.length) <= most
}
