package pack

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"

	"github.com/hbmfs/hbmfs/layout"
)

// mdsConfig is a shard's config of MosaicML Streaming. It lies in the shard and, with more keys, in index.json. The
// fields are in the order of json.dumps(sort_keys=True) (streaming, base/format/mds/writer.py).
type mdsConfig struct {
	ColumnEncodings []string `json:"column_encodings"`
	ColumnNames     []string `json:"column_names"`
	ColumnSizes     []*int64 `json:"column_sizes"`
	Compression     *string  `json:"compression"`
	Format          string   `json:"format"`
	Hashes          []string `json:"hashes"`
	SizeLimit       int64    `json:"size_limit"`
	Version         int      `json:"version"`
}

// mdsShard is a shard's entry in index.json.
type mdsShard struct {
	mdsConfig
	RawData struct {
		Basename string            `json:"basename"`
		Bytes    int64             `json:"bytes"`
		Hashes   map[string]string `json:"hashes"`
	} `json:"raw_data"`
	Samples int     `json:"samples"`
	ZipData *string `json:"zip_data"`
}

// mdsIndex collects the entries of index.json.
type mdsIndex struct {
	Shards  []mdsShard `json:"shards"`
	Version int        `json:"version"`

	dropped int64 // tokens that filled no sample
}

// write makes index.json.
func (x *mdsIndex) write(ctx context.Context, o *output) error {
	x.Version = 2
	data, err := json.Marshal(x)
	if err != nil {
		return fmt.Errorf("write \"index.json\": %w", err)
	}
	f, err := o.create("index.json")
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.finish(ctx)
}

// newMDSConfig describes one column "tokens". With sampleTokens 0 a sample is a document of any length. Else every
// sample has that many tokens and no header, so that the samples are one array.
func newMDSConfig(d layout.DType, sampleTokens int64) mdsConfig {
	name := map[layout.DType]string{layout.U16: "uint16", layout.I32: "int32", layout.U32: "uint32"}[d]
	c := mdsConfig{
		ColumnEncodings: []string{"ndarray:" + name}, ColumnNames: []string{"tokens"}, ColumnSizes: []*int64{nil},
		Format: "mds", Hashes: []string{"sha1"}, SizeLimit: defaultMDSBytes, Version: 2,
	}
	if sampleTokens > 0 {
		size := sampleTokens * int64(d.Size())
		c.ColumnEncodings[0] += fmt.Sprintf(":%d", sampleTokens)
		c.ColumnSizes[0] = &size
	}
	return c
}

// mdsHold is the number of tokens of a document that are held back before its header is written. The header's own
// size depends on the count up to 2^16, and no longer from there.
const mdsHold = 1 << 16

// mds writes one shard. Samples go to a scratch file, since their offsets come before them in the shard.
type mds struct {
	out     *output
	index   *mdsIndex
	config  mdsConfig
	dtype   layout.DType
	file    *outFile
	scratch *outFile
	ends    []uint32 // where each sample ends in scratch

	firstHead int64 // bytes of the first sample before its tokens

	sampleTokens int64
	inSample     int64 // tokens of the current sample, held ones included
	held         []byte
	streamedAt   int64 // offset of the current sample in scratch once its header is out, else -1
	buf          []byte
}

func newMDS(o *output, index *mdsIndex, name string, d layout.DType, sampleTokens int64) (*mds, error) {
	file, err := o.create(name)
	if err != nil {
		return nil, err
	}
	scratch, err := o.create(name + " samples")
	if err != nil {
		return nil, err
	}
	return &mds{out: o, index: index, config: newMDSConfig(d, sampleTokens), dtype: d, file: file, scratch: scratch,
		sampleTokens: sampleTokens, streamedAt: -1}, nil
}

func (m *mds) full() bool { return len(m.ends) >= mdsMaxSamples }

func (m *mds) write(tokens []uint32) error {
	var err error
	if m.buf, err = appendTokens(m.buf[:0], m.dtype, tokens); err != nil {
		return fmt.Errorf("write %q: %w", m.file.sums.Name, err)
	}
	m.inSample += int64(len(tokens))
	m.file.sums.Tokens += int64(len(tokens))
	if m.sampleTokens > 0 || m.streamedAt >= 0 {
		_, err = m.scratch.Write(m.buf)
		return err
	}
	m.held = append(m.held, m.buf...)
	if m.inSample < mdsHold {
		return nil
	}
	return m.flushHeld()
}

// flushHeld writes the current sample's header, for the tokens so far, and those.
func (m *mds) flushHeld() error {
	m.streamedAt = m.scratch.size
	head := mdsSampleHead(m.inSample, int64(m.dtype.Size()))
	if m.streamedAt == 0 {
		m.firstHead = int64(len(head))
	}
	if _, err := m.scratch.Write(head); err != nil {
		return err
	}
	_, err := m.scratch.Write(m.held)
	m.held = m.held[:0]
	return err
}

// mdsSampleHead returns a sample's size field and the array's shape: one dimension, in the smallest unsigned type.
func mdsSampleHead(tokens, width int64) []byte {
	var shape []byte
	switch {
	case tokens < 1<<8:
		shape = []byte{1 << 2, byte(tokens)}
	case tokens < 1<<16:
		shape = binary.LittleEndian.AppendUint16([]byte{1<<2 | 1}, uint16(tokens))
	default:
		shape = binary.LittleEndian.AppendUint32([]byte{1<<2 | 2}, uint32(tokens))
	}
	head := binary.LittleEndian.AppendUint32(nil, uint32(int64(len(shape))+tokens*width))
	return append(head, shape...)
}

func (m *mds) endDocument() error {
	m.file.sums.Documents++
	if m.sampleTokens > 0 {
		return nil // samples are cut when the shard is complete
	}
	if m.streamedAt < 0 {
		if err := m.flushHeld(); err != nil {
			return err
		}
	} else if err := m.scratch.patch(mdsSampleHead(m.inSample, int64(m.dtype.Size())), m.streamedAt); err != nil {
		return err
	}
	m.inSample, m.streamedAt = 0, -1
	if m.scratch.size > mdsMaxShard {
		return fmt.Errorf("write %q: the shard has more than 4 GiB, use a smaller --shard-tokens", m.file.sums.Name)
	}
	m.ends = append(m.ends, uint32(m.scratch.size))
	return nil
}

func (m *mds) save() (*shardState, error) {
	files, err := saveFiles(m.file, m.scratch)
	return &shardState{Files: files, Ends: m.ends, FirstHead: m.firstHead}, err
}

func (m *mds) finish(ctx context.Context) error {
	defer m.scratch.discard()
	samples := m.scratch.size
	if m.sampleTokens > 0 {
		samples = m.cutSamples()
	}
	if samples == 0 { // the whole shard is less than a sample
		m.file.discard()
		return nil
	}
	head, err := m.head()
	if err != nil {
		return err
	}
	if err := m.scratch.w.Flush(); err != nil {
		return fmt.Errorf("write %q: %w", m.scratch.sums.Name, err)
	}
	sum := sha1.New()
	body := &cancelReader{ctx, io.NewSectionReader(m.scratch.f, 0, samples)}
	if _, err := io.Copy(io.MultiWriter(m.file, sum), io.MultiReader(bytes.NewReader(head), body)); err != nil {
		return fmt.Errorf("write %q: %w", m.file.sums.Name, err)
	}
	entry := mdsShard{mdsConfig: m.config, Samples: len(m.ends)}
	entry.RawData.Basename, entry.RawData.Bytes = m.file.sums.Name, m.file.size
	entry.RawData.Hashes = map[string]string{"sha1": hex.EncodeToString(sum.Sum(nil))}
	m.index.Shards = append(m.index.Shards, entry)
	return m.file.finish(ctx)
}

// cutSamples sets ends for samples of a fixed size and returns their bytes. The tokens of a last, incomplete sample
// are dropped, as llm-foundry's ConcatTokensDataset does, and counted.
func (m *mds) cutSamples() int64 {
	size := *m.config.ColumnSizes[0]
	n := m.scratch.size / size
	for i := range min(n, mdsMaxShard/size) { // head refuses the rest
		m.ends = append(m.ends, uint32((i+1)*size))
	}
	dropped := (m.scratch.size - n*size) / int64(m.dtype.Size())
	m.index.dropped += dropped
	m.file.sums.Tokens -= dropped
	return n * size
}

// head returns the bytes before the samples: count, offsets and config. Spaces pad the config until the tokens of the
// first sample start on a 4 KiB boundary. Readers skip the config; JSON allows the spaces.
func (m *mds) head() ([]byte, error) {
	config, err := json.Marshal(m.config)
	if err != nil {
		return nil, fmt.Errorf("write %q: %w", m.file.sums.Name, err)
	}
	table := int64(4 + 4*(len(m.ends)+1))
	start := (table+int64(len(config))+m.firstHead+4095)&^4095 - m.firstHead
	if start+m.scratch.size > mdsMaxShard {
		return nil, fmt.Errorf("write %q: the shard has more than 4 GiB, use a smaller --shard-tokens", m.file.sums.Name)
	}
	head := binary.LittleEndian.AppendUint32(make([]byte, 0, start), uint32(len(m.ends)))
	head = binary.LittleEndian.AppendUint32(head, uint32(start))
	for _, end := range m.ends {
		head = binary.LittleEndian.AppendUint32(head, uint32(start)+end)
	}
	head = append(head, config...)
	return append(head, bytes.Repeat([]byte{' '}, int(start)-len(head))...), nil
}

// cancelReader ends a long copy when ctx does.
type cancelReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
