package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// pieceType is the type of a piece of a sentencepiece model (google/sentencepiece,
// src/sentencepiece_model.proto).
type pieceType uint64

const (
	pieceNormal  pieceType = 1
	pieceUnknown pieceType = 2
	pieceControl pieceType = 3
	pieceDefined pieceType = 4 // by a user: its text is always this token
	pieceUnused  pieceType = 5
	pieceByte    pieceType = 6
)

// sentencePiece is a piece of a model.
type sentencePiece struct {
	text  string
	score float32
	kind  pieceType
}

// sentenceModel is the part of a sentencepiece model that decides about tokens. The rest is about its training, and about tokens that
// become text.
type sentenceModel struct {
	pieces   []sentencePiece
	model    uint64 // 1 Unigram, 2 BPE, 3 words, 4 characters
	suffix   bool   // spaces are marked behind words
	fallback bool   // runes that are no piece become bytes
	bos, eos string
	rules    []byte // precompiled_charsmap
	prefix   bool   // add_dummy_prefix
	extra    bool   // remove_extra_whitespaces
	escape   bool   // escape_whitespaces
}

var errSentence = errors.New("the file looks like a sentencepiece model, and is broken or cut off")

// eachField calls each for the fields of a message: the bytes of one that has a length, or the number of one that is a varint or has
// a fixed size.
func eachField(raw []byte, each func(id protowire.Number, text []byte, number uint64) error) error {
	for len(raw) > 0 {
		id, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return errSentence
		}
		raw = raw[n:]
		var text []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(raw)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(raw)
		case protowire.Fixed32Type:
			var fixed uint32
			fixed, n = protowire.ConsumeFixed32(raw)
			number = uint64(fixed)
		default:
			n = protowire.ConsumeFieldValue(id, kind, raw)
		}
		if n < 0 {
			return errSentence
		}
		raw = raw[n:]
		if err := each(id, text, number); err != nil {
			return err
		}
	}
	return nil
}

// readSentenceModel reads the messages of a model. Missing fields have the value that the format gives them.
func readSentenceModel(raw []byte) (*sentenceModel, error) {
	m := &sentenceModel{model: 1, bos: "<s>", eos: "</s>", prefix: true, extra: true, escape: true}
	total := 0
	err := eachField(raw, func(id protowire.Number, text []byte, _ uint64) error {
		switch id {
		case 1:
			p := sentencePiece{kind: pieceNormal}
			err := eachField(text, func(id protowire.Number, text []byte, number uint64) error {
				switch id {
				case 1:
					p.text = string(text)
				case 2:
					p.score = math.Float32frombits(uint32(number))
				case 3:
					p.kind = pieceType(number)
				}
				return nil
			})
			m.pieces = append(m.pieces, p)
			if total += len(p.text); len(p.text) > maxToken || total > maxText || len(m.pieces) > maxSize {
				return fmt.Errorf("the piece %d, %.20q..., has more than %d bytes, or all have more than %d", len(m.pieces)-1, p.text, maxToken, maxText)
			}
			return err
		case 2:
			return m.readTrainer(text)
		case 3:
			return m.readNormalizer(text)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, m.check()
}

func (m *sentenceModel) readTrainer(raw []byte) error {
	return eachField(raw, func(id protowire.Number, text []byte, number uint64) error {
		switch id {
		case 3:
			m.model = number
		case 24:
			m.suffix = number != 0
		case 35:
			m.fallback = number != 0
		case 46:
			m.bos = string(text)
		case 47:
			m.eos = string(text)
		}
		return nil
	})
}

func (m *sentenceModel) readNormalizer(raw []byte) error {
	return eachField(raw, func(id protowire.Number, text []byte, number uint64) error {
		switch id {
		case 2:
			m.rules = text
		case 3:
			m.prefix = number != 0
		case 4:
			m.extra = number != 0
		case 5:
			m.escape = number != 0
		}
		return nil
	})
}

// check refuses models that are not read as the package reads them.
func (m *sentenceModel) check() error {
	switch {
	case len(m.pieces) == 0:
		return errSentence
	case m.model != 1 && m.model != 2:
		return errors.New("the sentencepiece model is of words or characters, which is not supported: BPE and Unigram are")
	case m.suffix:
		return errors.New("the sentencepiece model marks spaces behind words (treat_whitespace_as_suffix), which is not supported")
	case !m.escape:
		return errors.New("the sentencepiece model leaves spaces as they are (escape_whitespaces), which is not supported")
	}
	seen := make(map[string]bool, len(m.pieces))
	unknown := 0
	for i, p := range m.pieces {
		switch {
		case p.text == "" || !utf8.ValidString(p.text):
			return fmt.Errorf("the sentencepiece model: the piece %d is empty, or no UTF-8", i)
		case seen[p.text]:
			return fmt.Errorf("the sentencepiece model has the piece %q twice", p.text)
		case math.IsNaN(float64(p.score)) || math.IsInf(float64(p.score), 0):
			return fmt.Errorf("the sentencepiece model: the score of the piece %q is not a number", p.text)
		case p.kind == pieceUnused:
			return fmt.Errorf("the sentencepiece model has the piece %q, which is not to be used: this is not supported", p.text)
		case p.kind < pieceNormal || p.kind > pieceByte:
			return fmt.Errorf("the sentencepiece model: the piece %q has the type %d, which is not known", p.text, p.kind)
		case p.kind == pieceUnknown:
			unknown++
		}
		seen[p.text] = true
	}
	if unknown != 1 {
		return fmt.Errorf("the sentencepiece model has %d pieces for what it does not know, and must have one", unknown)
	}
	return nil
}

// parseSentencePiece makes a tokenizer of a sentencepiece model. Its tokens are those of the package's encode.
func parseSentencePiece(raw []byte) (*Tokenizer, error) {
	m, err := readSentenceModel(raw)
	if err != nil {
		return nil, err
	}
	l := &hfLoader{Tokenizer: &Tokenizer{size: int64(len(m.pieces))}, vocab: map[string]uint32{}}
	ids := make(map[string]uint32, len(m.pieces))
	unk := none
	var defined []addedToken
	for i, p := range m.pieces {
		ids[p.text] = uint32(i)
		switch p.kind {
		case pieceUnknown:
			unk = uint32(i)
		case pieceDefined:
			defined = append(defined, addedToken{id: uint32(i), content: p.text})
			l.vocab[p.text] = uint32(i)
		case pieceNormal:
			l.vocab[p.text] = uint32(i)
		}
	}
	bytes, err := m.byteTokens(ids)
	if err != nil {
		return nil, err
	}
	normal := &sentenceNormalizer{defined: newAddedTokens(defined), prefix: m.prefix, extra: m.extra}
	if len(m.rules) > 0 {
		if normal.rules, err = newCharsmap(m.rules); err != nil {
			return nil, fmt.Errorf("the sentencepiece model: %w", err)
		}
	}
	l.normalizer = []normalizer{{sentence: normal}}
	if m.model == 2 {
		err = l.loadSentenceMerges(m, unk, bytes, defined)
	} else {
		l.model.sentence = newSentenceUnigram(m, l.vocab, unk, bytes)
	}
	l.ids = func(token string) (uint32, bool) { id, ok := ids[token]; return id, ok }
	l.bos, l.eot = m.boundary(beginning(), m.bos, ids), m.boundary(ending(), m.eos, ids)
	l.around.err = errors.New("a sentencepiece model does not say what goes around a text: use --bos and --eot")
	l.noSpecialText = errors.New("a sentencepiece model never finds special tokens in a text")
	return l.Tokenizer, err
}

// boundary is the control piece of that name.
func (m *sentenceModel) boundary(of side, name string, ids map[string]uint32) boundary {
	if id, ok := ids[name]; ok && m.pieces[id].kind == pieceControl {
		return boundary{token: id}
	}
	return boundary{err: fmt.Errorf("the sentencepiece model has no piece that %s a text: say with %s which one it is, or none", of.verb, of.flag)}
}

// byteTokens returns the pieces of single bytes, nil where unknown runes are one piece.
func (m *sentenceModel) byteTokens(ids map[string]uint32) (*[256]uint32, error) {
	if !m.fallback {
		return nil, nil
	}
	var tokens [256]uint32
	for b := range tokens {
		name := fmt.Sprintf("<0x%02X>", b)
		id, ok := ids[name]
		if !ok || m.pieces[id].kind != pieceByte {
			return nil, fmt.Errorf("the sentencepiece model has no piece %s for its byte_fallback", name)
		}
		tokens[b] = id
	}
	return &tokens, nil
}

// loadSentenceMerges makes merges of the pieces of a BPE model. The package joins two neighbours whose text is a piece, that of the best
// score first, and the first of equals. So a pair has the rank of its piece's score.
func (l *hfLoader) loadSentenceMerges(m *sentenceModel, unk uint32, bytes *[256]uint32, defined []addedToken) error {
	b := &merges{unk: unk, fuse: true, bytes: bytes}
	l.setUnits(b)
	var scores []float32
	for text := range l.vocab {
		scores = append(scores, m.pieces[l.vocab[text]].score)
	}
	slices.Sort(scores)
	scores = slices.Compact(scores)
	slices.Reverse(scores)
	ranks := make(map[float32]uint32, len(scores))
	for rank, score := range scores {
		ranks[score] = uint32(rank)
	}
	var pairs [][2]string
	for i := range m.pieces { // in their order, so that the table is the same each time
		p := &m.pieces[i]
		if p.kind != pieceNormal { // pieces of users are taken before anything is merged
			continue
		}
		if r := l.missing(b, p.text); r >= 0 {
			return fmt.Errorf("the sentencepiece model has the piece %q, and none for its character %q: this is not supported", p.text, r)
		}
		for k := range p.text {
			if left, right := p.text[:k], p.text[k:]; k > 0 && l.id(left) != none && l.id(right) != none {
				pairs = append(pairs, [2]string{left, right})
			}
		}
	}
	b.pairs = newPairTable(len(pairs))
	for _, pair := range pairs {
		id := l.id(pair[0] + pair[1])
		b.pairs.set(l.id(pair[0]), l.id(pair[1]), pairMerge{ranks[m.pieces[id].score], id})
	}
	l.model.merges = b
	b.borders = l.findBorders(b, pairs)
	l.lists[1], l.added[1] = defined, newAddedTokens(defined)
	l.sentenceCuts(defined)
	return nil
}

// missing returns a rune of text that is no piece, or -1.
func (l *hfLoader) missing(b *merges, text string) rune {
	for _, r := range text {
		if b.unit(r) == none {
			return r
		}
	}
	return -1
}

// sentenceCuts decides where texts may be cut: before a space after a letter, if no merge and no rule goes over that.
func (l *hfLoader) sentenceCuts(defined []addedToken) {
	l.cuts = cuts{letterSpace: l.model.merges.borders != nil, onlySpace: true, borders: l.model.merges}
	if rules := l.normalizer[0].sentence.rules; rules != nil {
		l.cuts.onlyASCII = true
		l.cuts.letterSpace = l.cuts.letterSpace && !rules.joinsSpaces()
		for b, to := range rules.ascii {
			if to != nil && (b == ' ' && string(to) != " " || 'a' <= b|0x20 && b|0x20 <= 'z') {
				l.cuts.letterSpace = false
			}
		}
	}
	for _, d := range defined {
		l.cuts.join(d.content)
	}
}
