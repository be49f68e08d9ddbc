// Package address knows the schemes of sources that are not on this machine: how an address is written, which options it
// takes, and where its credentials come from. Commands, the CSI driver and error messages ask it. Package cache/origins opens
// addresses.
package address

import (
	"encoding/json"
	"slices"
	"strings"
)

// Scheme is a kind of address.
type Scheme struct {
	Names   []string // before ://
	Form    string   // how the address is written, for people
	Help    string   // what hbmfs mount --help says of it, in one line: options and credentials
	Options []string // keys of the query that a Kubernetes volume may name; nil where it may have no query
	Secrets []string // keys of a Kubernetes secret with its credentials; nil where it has none. An address of the others takes anonymous=true
	// SecretFile is the variable of the environment that names a file with the one secret in it. "" stands for AWS's credentials file, which has
	// all secrets.
	SecretFile string
	// CheckSecret says why a secret of a pod may not be used, "" where it may; nil where each may.
	CheckSecret func(value string) (why string)
	// Role is the attribute of a Kubernetes volume that names what the token of a pod's service account is exchanged for; "" where it is for nothing.
	Role string
}

// Schemes are all schemes, in the order of help.
func Schemes() []Scheme {
	return []Scheme{
		{
			Names: []string{"s3"}, Form: "s3://BUCKET/PREFIX",
			Help:    "?endpoint=http://HOST:PORT&region=...; credentials are found where AWS's tools find them",
			Options: []string{"endpoint", "region", "path_style"},
			Secrets: []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}, Role: "roleArn",
		},
		{
			Names: []string{"gs"}, Form: "gs://BUCKET/PREFIX",
			Help:    "?user_project=PROJECT; credentials are found where Google's tools find them",
			Options: []string{"endpoint", "user_project"},
			Secrets: []string{"credentials.json"}, SecretFile: "GOOGLE_APPLICATION_CREDENTIALS", CheckSecret: checkGoogle,
			Role: "workloadIdentityProvider",
		},
		{
			Names: []string{"az", "abfs", "abfss"}, Form: "az://ACCOUNT/CONTAINER/PREFIX",
			Help:    "credentials are found where Azure's tools find them: AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, az login",
			Options: []string{"endpoint"},
			Secrets: []string{"AZURE_STORAGE_CONNECTION_STRING"}, SecretFile: "AZURE_STORAGE_CONNECTION_STRING_FILE", CheckSecret: checkAzure,
			Role: "azureClientId",
		},
		{
			Names: []string{"hf"}, Form: "hf://ORG/NAME",
			Help: "a model of the Hugging Face Hub; hf://datasets/ORG/NAME is a dataset, and @REVISION and /PATH may follow. " +
				"The token is found where the Hub's tools find it: HF_TOKEN, or hf auth login. HF_ENDPOINT names a mirror",
			Options: []string{"endpoint"}, Secrets: []string{"HF_TOKEN"}, SecretFile: "HF_TOKEN_PATH",
		},
		{
			Names: []string{"oci"}, Form: "oci://REGISTRY/REPO:TAG",
			Help: "a model or image of a registry; @sha256:DIGEST may stand in place of :TAG. ?platform=OS/ARCHITECTURE chooses from an index, and " +
				"?endpoint=https://HOST names a mirror. The login is found where Docker's and podman's tools find it",
			Options: []string{"endpoint", "platform"},
			Secrets: []string{".dockerconfigjson"}, SecretFile: "REGISTRY_AUTH_FILE", CheckSecret: checkDocker,
		},
		{
			Names: []string{"http", "https"}, Form: "http(s)://HOST/PATH",
			Help: "one file, or a directory (with a slash at its end) that has an index, or that its server lists",
		},
	}
}

// checkGoogle refuses files of credentials that have their reader open files of the node, and send them to a server that they name.
func checkGoogle(value string) string {
	var file struct {
		Type string `json:"type"`
	}
	if json.Unmarshal([]byte(value), &file) != nil || file.Type != "service_account" && file.Type != "authorized_user" {
		return "want the JSON of a service account's key, or of a user (type service_account or authorized_user)"
	}
	return ""
}

// checkDocker refuses files of logins that have their reader start programs of the node.
func checkDocker(value string) string {
	var file map[string]json.RawMessage
	if json.Unmarshal([]byte(value), &file) != nil || file["auths"] == nil {
		return "want JSON with auths, as kubectl create secret docker-registry makes it"
	}
	for key := range file {
		if !strings.EqualFold(key, "auths") {
			return "want logins in auths, and nothing else: credsStore and credHelpers name programs of the node"
		}
	}
	return ""
}

// checkAzure refuses connection strings without a secret, and text that is none.
func checkAzure(value string) string {
	if strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c > '~' }) || !strings.Contains(value, "AccountKey=") && !strings.Contains(value, "SharedAccessSignature=") {
		return "want a connection string of the account: AccountKey=... or SharedAccessSignature=..., without white space"
	}
	return ""
}

// Of returns the scheme of a source; of a path, and of an address that nothing opens, one without names.
func Of(source string) Scheme {
	name, _, found := strings.Cut(source, "://")
	all := Schemes()
	if i := slices.IndexFunc(all, func(s Scheme) bool { return slices.Contains(s.Names, name) }); found && i >= 0 {
		return all[i]
	}
	return Scheme{}
}

// IsRemote reports whether a source is an address and not a path.
func IsRemote(source string) bool {
	scheme, _, found := strings.Cut(source, "://")
	return found && scheme != "" && !strings.ContainsAny(scheme, "/.")
}

// Meant is the address that lost a slash in a path, as Python's pathlib and shells' completion leave it: of "s3:/bucket", or a path that ends so, it is
// "s3://bucket". It is "" where there is none.
func Meant(path string) string {
	before, rest, found := strings.Cut(path, ":/")
	name := before[strings.LastIndexByte(before, '/')+1:]
	if meant := name + "://" + rest; found && !strings.HasPrefix(rest, "/") && Of(meant).Names != nil {
		return meant
	}
	return ""
}

// Forms lists how addresses are written, the last after a conjunction such as "or".
func Forms(conjunction string) string {
	var forms []string
	for _, s := range Schemes() {
		forms = append(forms, s.Form)
	}
	return join(forms, conjunction)
}

// Known lists the schemes, each as NAME://.
func Known() string {
	var names []string
	for _, s := range Schemes() {
		for _, name := range s.Names {
			names = append(names, name+"://")
		}
	}
	return join(names, "and")
}

// WithSecrets lists the schemes that take a secret, each as NAME://.
func WithSecrets() string {
	var names []string
	for _, s := range Schemes() {
		if s.Secrets != nil {
			names = append(names, s.Names[0]+"://")
		}
	}
	return join(names, "and")
}

func join(words []string, conjunction string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
