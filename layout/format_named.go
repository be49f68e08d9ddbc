package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
)

// Some formats hold no tokens that lie in the file as they are. They are known by name, so that messages can say how to
// use them.

// named is a known kind of file.
type named struct{ about string }

// namedAssemble makes one set of a directory's files, without views.
func namedAssemble(_ context.Context, d *directory, members []member) {
	abouts, groups := grouped(members, func(m member) string { return m.head.(named).about })
	for i, group := range groups {
		var shards []*Shard
		for _, m := range group {
			shards = append(shards, newShard(m.object))
		}
		d.add("", DTypeUnknown, shards).NoTokens = abouts[i]
	}
}

// evalProbe knows llm.c's file of multiple-choice questions (karpathy/llm.c, dev/data/data_common.py, write_evalfile).
func evalProbe(_ *Object, head []byte) any {
	if len(head) < 12 || binary.LittleEndian.Uint32(head) != 20240522 || binary.LittleEndian.Uint32(head[4:]) != 1 {
		return nil
	}
	return named{"llm.c's evaluation file: questions and answers as records of u16, which no loader reads as a stream of tokens. Read it as it is"}
}

// recordProbe knows TFRecord by the checksum of its first length (tensorflow, core/lib/io/record_writer.h), and
// ArrayRecord by the signature of the Riegeli file that it is (google/riegeli, doc/riegeli_records_file_format.md).
func recordProbe(o *Object, head []byte) any {
	const riegeli = "\x83\xaf\x70\xd1\x0d\x88\x4a\x3f\x00\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00"
	if bytes.HasPrefix(head, []byte(riegeli)) {
		return named{"ArrayRecord or Riegeli records: read them through the mount with array_record or Grain. They are compressed, so there is no view"}
	}
	if len(head) < 16 {
		return nil
	}
	n := binary.LittleEndian.Uint64(head)
	sum := crc32.Checksum(head[:8], crc32.MakeTable(crc32.Castagnoli))
	if masked := (sum>>15 | sum<<17) + 0xa282ead8; masked != binary.LittleEndian.Uint32(head[8:]) || n > uint64(o.Size)-16 {
		return nil
	}
	return named{"TFRecord: read it through the mount with TensorFlow or Grain. Its records are protocol buffers, so there is no view"}
}
