// Package volume turns Kubernetes' description of a volume (attributes, secrets, the pod that asks) into the arguments of
// a daemon. It does no I/O.
//
// A [Spec] decides which bytes are seen, how, and with whose rights. Two requests with equal specs share one daemon, so
// everything that makes a difference must be in it, and nothing else may be. [Parse] makes it, and refuses unknown
// attributes: an attribute that is ignored is a typing error that nobody finds.
package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// Ways to ask a source.
const (
	AuthAnonymous = "anonymous"
	AuthSecret    = "secret" // access keys from a Kubernetes secret
	AuthPod       = "pod"    // a role of AWS, or an identity at Google or Azure, with the token of the pod's service account
)

// Spec has the arguments of a daemon, without secrets.
type Spec struct {
	Source   string   `json:"source"`
	Flags    []string `json:"flags,omitempty"` // of hbmfs mount, in a fixed order
	Auth     string   `json:"auth"`
	Role     string   `json:"role_arn,omitempty"` // for AuthPod: what [address.Scheme.Role] says
	Account  string   `json:"account,omitempty"`  // of Google, that the identity acts for; "" for none
	Tenant   string   `json:"tenant,omitempty"`   // of Entra ID, where Role is a client
	Identity string   `json:"identity,omitempty"` // a hash of the credentials; "" where everybody may ask

	Checkpoints bool   `json:"checkpoints,omitempty"` // Source is a directory where programs write checkpoints
	Drain       string `json:"drain,omitempty"`       // where published ones are copied to

	KV      bool          `json:"kv,omitempty"`       // Source is a directory where engines keep blocks of KV caches
	Size    int64         `json:"size,omitempty"`     // bytes that they may take of its disk
	Memory  int64         `json:"memory,omitempty"`   // bytes of memory that they may take
	KeepFor time.Duration `json:"keep_for,omitempty"` // how long the volume stays once no pod uses it any more
}

// Key names the spec: equal specs have equal keys.
func (s Spec) Key() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic("volume: internal error: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:10])
}

// Same tells whether two specs ask for the same, with any credentials.
func (s Spec) Same(other Spec) bool {
	s.Identity, other.Identity = "", ""
	return s.Key() == other.Key()
}

// Directory returns the directory of the node that is the source, "" for a remote one.
func (s Spec) Directory() string {
	if filepath.IsAbs(s.Source) {
		return s.Source
	}
	return ""
}

// Address is the source as hbmfs mount takes it. Nobody who asks anonymously gets the rights of the node.
func (s Spec) Address() string { return s.anonymous(s.Source) }

func (s Spec) anonymous(source string) string {
	if s.Auth != AuthAnonymous || address.Of(source).Secrets == nil {
		return source
	}
	if strings.Contains(source, "?") {
		return source + "&anonymous=true" // nothing of it is read here, so nothing gets lost
	}
	return source + "?anonymous=true"
}

// Cached tells whether the daemon keeps bytes in the cache directory: those of remote sources, and decoded shards of a
// directory where a flag names the cache.
func (s Spec) Cached() bool {
	return s.Directory() == "" || slices.ContainsFunc(s.Flags, func(f string) bool { return strings.HasPrefix(f, "--cache-") })
}

// MinFree is how many bytes of the cache's disk the volume wants to stay free, 0 where it does not say.
func (s Spec) MinFree() int64 {
	for _, f := range s.Flags {
		if text, ok := strings.CutPrefix(f, "--cache-min-free="); ok {
			if n, err := size.Parse(text); err == nil {
				return n
			}
		}
	}
	return 0
}

// Want is a spec with the secrets to serve it with. Its secrets belong into files that only root reads, and nowhere else.
type Want struct {
	Spec
	Credentials []byte // the file that has them, for AuthSecret: AWS's, or the one of [address.Scheme.SecretFile]
	Token       []byte // of a service account, for AuthPod
	Group       string // that the directory of a volume shall have which pods change; "" for the one it has
}

// Identity is a hash of strings, in which each stands for itself.
func Identity(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		sum := sha256.Sum256([]byte(p))
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
